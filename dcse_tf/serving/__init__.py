"""An HTTP server for an encoder and optionally a re-ranker, for OpenAI's and Cohere's clients."""
