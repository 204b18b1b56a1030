"""An HTTP server for an encoder and optionally a re-ranker, for OpenAI, Cohere and Jina clients."""
