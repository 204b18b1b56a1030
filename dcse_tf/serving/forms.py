"""The forms of requests."""

from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
)

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


class _Form(BaseModel):
    """A request. Fields that it does not know are refused: the answer may not be what they ask for.

    Attributes:
        model: the model's name; empty for the server's.
        truncate: whether long texts are truncated, which they always are (Jina, Voyage).
        task, user: of no effect here: what the embeddings are for (Jina), and who asks (OpenAI).
    """

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    truncate: Literal[True] | None = Field(
        None, validation_alias=AliasChoices("truncate", "truncation")
    )
    task: str | None = None
    user: str | None = None


class EmbeddingsForm(_Form):
    """OpenAI's request for embeddings, and Jina's, which has `normalized` for length 1."""

    input: Texts
    encoding_format: Literal["float", "base64"] = Field(
        "float", validation_alias=AliasChoices("encoding_format", "embedding_type")
    )
    dimensions: int | None = None
    normalized: bool = False


class RerankForm(_Form):
    """Cohere's and Jina's request to rank documents by their relevance to a query, and Voyage's,
    where `top_n` is `top_k`.
    """

    query: Text
    documents: Texts
    top_n: int | None = Field(None, ge=1, validation_alias=AliasChoices("top_n", "top_k"))
    return_documents: bool | None = None


class MatchForm(_Form):
    """A request to score how well responses fit a context."""

    context: Texts
    responses: Texts
