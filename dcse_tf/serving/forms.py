"""The forms of requests."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, ValidationInfo

from dcse_tf.encoder.sentence_encoder import read_texts

_TOKEN_IDS = (
    "expected texts, found token ids, which another tokenizer made; LangChain's OpenAIEmbeddings "
    "sends texts with check_embedding_ctx_length=False"
)


def _read_texts(value: Any, info: ValidationInfo) -> list[str]:
    """A list of texts, from a string or a list of strings and {"text": ...} objects."""
    values = [value] if isinstance(value, str) else value
    if isinstance(values, list):
        values = [each.get("text") if isinstance(each, dict) else each for each in values]
        if any(isinstance(each, int | list) for each in values[:1]):
            raise ValueError(_TOKEN_IDS)
    try:
        return read_texts(values, str(info.field_name))
    except TypeError as error:  # pydantic reports only ValueError
        raise ValueError(str(error)) from None


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a string, found {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise ValueError(f"not a text: {error}") from None
    return value


Text = Annotated[str, BeforeValidator(_read_text)]
Texts = Annotated[list[str], BeforeValidator(_read_texts)]


class EmbeddingsForm(BaseModel):
    """OpenAI's request for embeddings, and Jina's, which has `normalized` for length 1."""

    input: Texts
    model: str = ""
    encoding_format: Literal["float", "base64"] = Field(
        "float", validation_alias=AliasChoices("encoding_format", "embedding_type")
    )
    dimensions: int | None = None
    normalized: bool = False


class RerankForm(BaseModel):
    """Cohere's and Jina's request to rank documents by their relevance to a query."""

    query: Text
    documents: Texts
    model: str = ""
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None


class MatchForm(BaseModel):
    """A request to score how well responses fit a context."""

    context: Texts
    responses: Texts
    model: str = ""
