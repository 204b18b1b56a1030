"""Error responses in the form that clients of each API expect."""

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse

RERANK_ROUTES = ("/v1/rerank", "/v2/rerank")
_CODES = {401: "invalid_api_key", 404: "not_found", 429: "rate_limit_exceeded"}


class Refusal(Exception):
    """A request is refused.

    Args:
        status: HTTP status of the response.
        message: the reason, one sentence.
        headers: additional headers of the response.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status = status
        self.headers = headers


def refuse(
    path: str, status: int, message: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """The error response: in Cohere's and Jina's form for rerank, in OpenAI's form for other paths
    below /v1, and {"detail": ...} elsewhere.
    """
    body: dict[str, Any] = {"detail": message}
    if path in RERANK_ROUTES:
        body = {"message": message, "detail": message}
    elif path.startswith("/v1/"):
        kind = "server_error" if status >= 500 else "invalid_request_error"
        error = {"message": message, "type": kind, "param": None, "code": _CODES.get(status)}
        body = {"error": error}
    return JSONResponse(body, status, headers)
