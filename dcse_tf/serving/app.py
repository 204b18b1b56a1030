"""The routes: turn requests into work for the batcher, and its results into responses."""

import asyncio
import base64
import contextlib
import math
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import fastapi
import numpy as np
import scipy.special
from absl import logging
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

import dcse_tf
from dcse_tf.data.dialogue import is_blank
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.search.job import split_turns
from dcse_tf.serving import metrics
from dcse_tf.serving.batcher import Batcher, QueueFull
from dcse_tf.serving.errors import Refusal, refuse
from dcse_tf.serving.forms import EmbeddingsForm, MatchForm, RerankForm
from dcse_tf.serving.model import EMBED, MATCH, RERANK, ServedModel
from dcse_tf.serving.options import ServeOptions

_RETRY_AFTER = "1"  # seconds


class Service:
    """The state that the routes share.

    Args:
        options: the settings, including the limits.
        model: computes the results.
    """

    def __init__(self, options: ServeOptions, model: ServedModel):
        self.options = options
        self.model = model
        self.stopping = False
        self.batcher = Batcher(
            model.compute,
            options.batch_tokens,
            options.max_wait_ms / 1000,
            options.max_queue,
            metrics.WAITING.set,
        )

    def check(self, name: str, **fields: list[str]) -> None:
        """Refuses requests for another model, and texts over the limits."""
        if name not in ("", self.model.name):
            raise Refusal(404, f"There is no such model; this is {self.model.name}.")
        for field, texts in fields.items():
            if not texts:
                raise Refusal(400, f"{field}: expected at least one text.")
            if len(texts) > self.options.max_texts:
                raise Refusal(
                    400, f"{field}: {len(texts)} texts, expected at most {self.options.max_texts}."
                )
            longest = max(range(len(texts)), key=lambda place: len(texts[place]))
            if len(texts[longest]) > self.options.max_characters:
                raise Refusal(
                    400,
                    f"{field}[{longest}]: {len(texts[longest])} characters, expected at most "
                    f"{self.options.max_characters}.",
                )

    async def embed(self, texts: list[str]) -> tuple[np.ndarray, int, int]:
        """Embeds texts; returns float32 `[texts, dim]`, the number of tokens, and the number of
        texts that were truncated.
        """
        found = await self.batcher.submit(EMBED, texts, self._estimate(texts))
        rows, tokens, truncated = zip(*found, strict=True)
        return np.stack(rows), sum(tokens), sum(truncated)

    async def score(self, kind: str, turns: list[str], responses: list[str]) -> tuple[Any, int]:
        """Scores responses to a context; returns float `[responses]` and an estimate of the number
        of tokens.
        """
        # Matching encodes a context once per batch, a re-ranker once per response.
        of_context = sum(self._estimate(turns))
        own = self._estimate(responses)
        share = math.ceil(of_context / len(responses)) if kind == MATCH else of_context
        items = [(tuple(turns), response) for response in responses]
        scores = await self.batcher.submit(kind, items, [each + share for each in own])
        return np.array(scores), of_context + sum(own)

    def _estimate(self, texts: list[str]) -> list[int]:
        return [self.model.estimate_tokens(text) for text in texts]

    async def relevance(self, query: str, documents: list[str]) -> tuple[np.ndarray, int]:
        """Scores documents by their relevance to a query: probabilities by the re-ranker or,
        without one, cosines with the mean embedding of the query's turns. A blank document has the
        lowest, 0 or -1. Returns float64 `[documents]` and the number of tokens.
        """
        turns = split_turns(query)
        if self.model.reranker:
            logits, tokens = await self.score(RERANK, turns, documents)
            return scipy.special.expit(logits), tokens
        rows, tokens, _ = await self.embed([*turns, *documents])
        rows = normalize(rows)
        context = normalize(rows[: len(turns)].mean(axis=0, keepdims=True))
        cosines = rows[len(turns) :] @ context[0]
        return np.where([is_blank(text) for text in documents], -1.0, cosines), tokens


def create_app(service: Service) -> fastapi.FastAPI:
    """The application, without the `Gate` in front of it."""

    @contextlib.asynccontextmanager
    async def run_batcher(app: fastapi.FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(service.batcher.run())
        yield
        task.cancel()

    app = fastapi.FastAPI(title="dcse_tf", version=dcse_tf.__version__, lifespan=run_batcher)
    _add_error_handlers(app)
    _add_embeddings(app, service)
    _add_rerank(app, service)
    _add_match(app, service)

    @app.get("/health")
    async def health() -> JSONResponse:
        status = "stopping" if service.stopping else "ok"
        return JSONResponse({"status": status}, 503 if service.stopping else 200)

    @app.get("/metrics")
    def show_metrics() -> Response:
        return Response(metrics.render(), media_type="text/plain; version=0.0.4")

    return app


def _add_embeddings(app: fastapi.FastAPI, service: Service) -> None:
    model = service.model

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        entry = {"id": model.name, "object": "model", "created": 0, "owned_by": "dcse_tf"}
        return {"object": "list", "data": [entry]}

    @app.post("/v1/embeddings")
    async def embeddings(form: EmbeddingsForm) -> JSONResponse:
        service.check(form.model, input=form.input)
        dim = model.encoder.dim
        if form.dimensions not in (None, dim):
            raise Refusal(400, f"dimensions: this model's embeddings have {dim}.")
        rows, tokens, truncated = await service.embed(form.input)
        rows = normalize(rows).astype(np.float32) if form.normalized else rows
        # Little-endian float32, as OpenAI's clients expect.
        made: Sequence[Any] = (
            [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
            if form.encoding_format == "base64"
            else rows.tolist()
        )
        data = [
            {"object": "embedding", "index": place, "embedding": each}
            for place, each in enumerate(made)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        # Not in OpenAI's answer, which refuses such texts; its clients take further fields.
        usage |= {"truncated_texts": truncated} if truncated else {}
        return JSONResponse({"object": "list", "data": data, "model": model.name, "usage": usage})


def _add_rerank(app: fastapi.FastAPI, service: Service) -> None:
    async def rerank(form: RerankForm, give_documents: bool) -> tuple[list[dict], int]:
        service.check(form.model, query=[form.query], documents=form.documents)
        _require_turn("query", [form.query])
        scores, tokens = await service.relevance(form.query, form.documents)
        order = np.argsort(-scores, kind="stable").tolist()
        results = [{"index": p, "relevance_score": float(scores[p])} for p in order[: form.top_n]]
        if give_documents:
            for each in results:
                each["document"] = {"text": form.documents[each["index"]]}
        return results, tokens

    @app.post("/v1/rerank")
    async def rerank_v1(form: RerankForm) -> JSONResponse:
        results, tokens = await rerank(form, form.return_documents is not False)
        usage = {"total_tokens": tokens, "prompt_tokens": tokens}
        return JSONResponse({"model": service.model.name, "results": results, "usage": usage})

    @app.post("/v2/rerank")
    async def rerank_v2(form: RerankForm) -> JSONResponse:
        results, tokens = await rerank(form, bool(form.return_documents))
        meta = {"api_version": {"version": "2"}, "tokens": {"input_tokens": tokens}}
        return JSONResponse({"id": str(uuid.uuid4()), "results": results, "meta": meta})


def _add_match(app: fastapi.FastAPI, service: Service) -> None:
    @app.post("/match")
    async def match(form: MatchForm) -> JSONResponse:
        service.check(form.model, context=form.context, responses=form.responses)
        _require_turn("context", form.context)
        if service.model.encoder.match is None:
            raise Refusal(400, f"{service.model.name} has only sentence embeddings, no matching.")
        scores, _ = await service.score(MATCH, form.context, form.responses)
        return JSONResponse({"similarities": scores.tolist()})


def _require_turn(field: str, texts: list[str]) -> None:
    if all(map(is_blank, texts)):
        raise Refusal(400, f"{field}: expected at least one turn that is not blank.")


def _add_error_handlers(app: fastapi.FastAPI) -> None:
    async def on_refusal(request: fastapi.Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return refuse(request.url.path, error.status, str(error), error.headers)

    async def on_full(request: fastapi.Request, error: Exception) -> Response:
        message = f"Too many texts wait; try again in {_RETRY_AFTER} s."
        return refuse(request.url.path, 429, message, {"Retry-After": _RETRY_AFTER})

    async def on_wrong_form(request: fastapi.Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return refuse(request.url.path, 400, _describe(error))

    async def on_http(request: fastapi.Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        told = {400: "The body is not JSON.", 404: "There is nothing at this path."}
        message = told.get(error.status_code, f"{error.detail}.")
        return refuse(request.url.path, error.status_code, message, error.headers)

    async def on_fault(request: fastapi.Request, error: Exception) -> Response:
        logging.error("%s: %r", request.url.path, error)
        return refuse(request.url.path, 500, "The server failed; its log says why.")

    app.add_exception_handler(Refusal, on_refusal)
    app.add_exception_handler(QueueFull, on_full)
    app.add_exception_handler(RequestValidationError, on_wrong_form)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_fault)


def _describe(error: RequestValidationError) -> str:
    """The first error as a sentence that begins with the field."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"The body is not JSON: {first['ctx']['error']}."
    field = ".".join(str(part) for part in first["loc"][1:])
    if not field:
        return "The body is not a JSON object."
    if first["type"] == "extra_forbidden":
        return f"{field}: is no field of this request, or its meaning is not implemented."
    if first["type"] == "value_error":
        text = str(first["ctx"]["error"])
        return text if text.startswith(field) else f"{field}: {text}"
    return f"{field}: {first['msg']}."
