"""`dcse serve` as its clients see it, with a small random encoder and a re-ranker.

Most tests ask the application in this process. One starts a server, as a user does.
"""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
import types
from unittest.mock import AsyncMock

import cohere
import httpx
import numpy as np
import openai
import pytest
from tiny_bert import build_backbone, save_checkpoint
from tiny_reranker import save_reranker

from dcse_tf.discovery.clusters import Clusters
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.evaluation.response_selection import Sample, score_by_embeddings
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.serving.app import Service, create_app
from dcse_tf.serving.serve import ServeOptions, listen, make_app

KEY = "a-key"
TEXTS = ["where is my parcel", "it left today", "好的发货", "", "thanks for the blue cup " * 9]
DOCUMENTS = ["thanks", "it left today", "i want a refund"]
QUERY = "where is [EOT] my parcel"
_RUNNER = asyncio.Runner()  # an application belongs to one event loop


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return save_checkpoint(folder / "tiny", build_backbone()), save_reranker(folder / "reranker")


@pytest.fixture(scope="module")
def encoder(models):
    return SentenceEncoder.load(models[0])


def ask(app, *requests):
    """The answers to requests (method, path, body), sent at once with the key."""

    async def run():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://s", headers=headers) as client,
        ):
            asked = [
                client.request(method, path, content=json.dumps(b) if isinstance(b, dict) else b)
                for method, path, b in requests
            ]
            return await asyncio.wait_for(asyncio.gather(*asked), 60)

    return _RUNNER.run(run())


def post(app, path, **body):
    (answer,) = ask(app, ("POST", path, body))
    return answer


@pytest.fixture(scope="module")
def app(models):
    options = ServeOptions(model=".", reranker=str(models[1]), max_body_mb=0.02)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(models[0])
        patch.setenv("DCSE_API_KEY", f"another\n{KEY}")
        return make_app(options)


def test_openai_s_and_cohere_s_clients_are_answered_until_the_server_is_told_to_stop(
    models, encoder
):
    command = [sys.executable, "-c", "from dcse_tf.cli.commands import main; main()", "serve"]
    command += [f"--model={models[0]}", f"--reranker={models[1]}", "--port=0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "DCSE_API_KEY": KEY}
    ) as process:
        try:
            url = process.stdout.readline().removeprefix("serving at ").strip()
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)
            assert client.models.list().data[0].id == "tiny"
            expected = encoder.encode(TEXTS)
            for form in ({}, {"encoding_format": None}, {"dimensions": 64}):  # base64 by default
                found = client.embeddings.create(model="tiny", input=TEXTS, **form)
                rows = [each.embedding for each in found.data]
                np.testing.assert_allclose(rows, expected, atol=1e-5)
            # [CLS] and [SEP] of each, and 4 + 3 + 4 + 0 + 45 words.
            assert found.usage.prompt_tokens == found.usage.total_tokens == 2 * 5 + 56
            with pytest.raises(openai.BadRequestError, match="embeddings have 64"):
                client.embeddings.create(model="tiny", input="a", dimensions=32)
            with pytest.raises(openai.NotFoundError, match="this is tiny"):
                client.embeddings.create(model="text-embedding-3-small", input="a")
            with pytest.raises(openai.AuthenticationError, match="Give a key"):
                openai.OpenAI(base_url=f"{url}/v1", api_key="wrong").models.list()

            ranked = Reranker.load(models[1]).rank(QUERY.split(" [EOT] "), DOCUMENTS)
            client = cohere.ClientV2(KEY, base_url=url)
            found = client.rerank(model="tiny", query=QUERY, documents=DOCUMENTS, top_n=2)
            assert [each.index for each in found.results] == [each.place for each in ranked[:2]]
            got = [each.relevance_score for each in found.results]
            expected = [1 / (1 + np.exp(-each.score)) for each in ranked[:2]]
            np.testing.assert_allclose(got, expected, atol=1e-5)
            with pytest.raises(cohere.BadRequestError, match="documents"):
                client.rerank(model="tiny", query=QUERY, documents=[])

            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


def test_requests_at_once_get_what_each_gets_alone(app, encoder):
    rng = np.random.default_rng(1)
    asked = [rng.choice(TEXTS, size=rng.integers(1, 9)).tolist() for _ in range(40)]
    answers = ask(app, *(("POST", "/v1/embeddings", {"input": texts}) for texts in asked))
    for texts, answer in zip(asked, answers, strict=True):
        rows = [each["embedding"] for each in answer.json()["data"]]
        np.testing.assert_allclose(rows, encoder.encode(texts, show_progress=False), atol=1e-5)


def test_the_answer_says_how_many_texts_were_truncated(app):
    texts = ["好" * 126, "好" * 127, "ok", "好" * 200]  # 126 and two special tokens fit
    usage = post(app, "/v1/embeddings", input=texts).json()["usage"]
    tokens = 3 * 128 + 3
    assert usage == {"prompt_tokens": tokens, "total_tokens": tokens, "truncated_texts": 2}


def test_blank_documents_come_last(app, models, encoder):
    documents = ["thanks", "", " \t", "ok"]
    results = post(app, "/v2/rerank", query=QUERY, documents=documents, return_documents=True)
    results = results.json()["results"]
    assert [each["document"]["text"] for each in results[2:]] == ["", " \t"]
    assert [each["relevance_score"] for each in results[2:]] == [0.0, 0.0]


@pytest.mark.parametrize("unit_norm", [False, True])
def test_without_a_re_ranker_documents_are_ordered_by_cosine(encoder, unit_norm):
    """By that of `evaluate`, whatever `unit_norm`, which changes the embeddings' length alone."""
    app = create_app(Service(ServeOptions(model="m", unit_norm=unit_norm), encoder, None), [], 1000)
    answers = ask(
        app,
        ("POST", "/v2/rerank", {"query": QUERY, "documents": [*DOCUMENTS, " "]}),
        ("POST", "/v1/embeddings", {"input": DOCUMENTS, "encoding_format": "float"}),
    )
    scores = {each["index"]: each["relevance_score"] for each in answers[0].json()["results"]}
    sample = Sample(QUERY.split(" [EOT] "), DOCUMENTS)
    expected = [*score_by_embeddings([sample], encoder.encode, {})["cosine"][0], -1.0]
    np.testing.assert_allclose([scores[place] for place in range(4)], expected, atol=1e-5)
    embeddings = [each["embedding"] for each in answers[1].json()["data"]]
    expected = encoder.encode(DOCUMENTS, normalize_embeddings=unit_norm)
    np.testing.assert_allclose(embeddings, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/v1/embeddings", '{"input": ["a"', 400, "the body: expected JSON, as Content-T"),
        ("POST", "/v1/embeddings", b'{"input": "\xff"}', 400, "body"),
        ("POST", "/v1/embeddings", "[" * 10_000, 400, "body"),
        ("POST", "/v1/embeddings", "", 400, "the body: expected JSON, as Content-Type: "),
        ("POST", "/v1/embeddings", {"input": []}, 400, "input: "),
        ("POST", "/v1/embeddings", {"input": [[5], [7]]}, 400, "check_embedding_ctx_length=False"),
        ("POST", "/v1/embeddings", {"input": ["a", None]}, 400, r"input.1: .*string"),
        ("POST", "/v1/embeddings", '{"input": ["\\ud83d"]}', 400, r"input.0: .*surrogates"),
        ("POST", "/v1/embeddings", {"input": "a", "encoding_format": "int8"}, 400, "encoding"),
        ("POST", "/v1/embeddings", {"input": "a", "late_chunking": True}, 400, "late_chunking: "),
        ("POST", "/v1/embeddings", {"input": "a", "model": "b"}, 404, "this is tiny"),
        ("GET", "/v1/embeddings", "", 405, "Method Not Allowed"),
        ("POST", "/v1/completions", {}, 404, "Not Found"),
        ("POST", "/v2/rerank", '{"query": "\\ud83d", "documents": ["a"]}', 400, "query: "),
        ("POST", "/v2/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, 400, "top_n: "),
        ("POST", "/v2/rerank", {"query": " ", "documents": ["a"]}, 400, "query: .* blank"),
        ("POST", "/v2/rerank", {"query": " [EOT] ", "documents": ["a"]}, 400, "query: .* blank"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence_where_either_client_reads_it(
    app, method, path, body, status, message
):
    (answer,) = ask(app, (method, path, body))
    assert answer.status_code == status
    told = answer.json()
    assert told["message"] == told["error"]["message"]
    assert re.search(message, told["message"])


def test_a_body_that_is_too_long(app):
    (answer,) = ask(app, ("POST", "/v1/embeddings", "a" * 20_001))
    assert answer.status_code == 413


def test_who_has_no_key_is_asked_for_one_except_for_health(app):
    async def run():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://s") as client:
            for headers in ({}, {"Authorization": KEY}, {"Authorization": "Bearer a-ke"}):
                answer = await client.post("/v1/embeddings", headers=headers, json={"input": "a"})
                assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert (await client.get("/health")).json() == {"status": "ok"}

    _RUNNER.run(run())


def test_a_full_queue_and_a_model_that_fails():
    begun, let = threading.Event(), threading.Semaphore(0)

    def embed(texts):
        begun.set()
        let.acquire(timeout=10)
        if "fail" in texts:
            raise ZeroDivisionError
        return np.ones([len(texts), 2]), np.zeros(len(texts), bool), np.ones(len(texts), int)

    encoder = types.SimpleNamespace(dim=2, settings={}, encode_and_mark=embed)
    service = Service(ServeOptions(model="m", max_queue=2), encoder, None)
    app = create_app(service, [], 1000)

    async def run():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://s") as client,
        ):

            def send(*texts):
                work = client.post("/v1/embeddings", json={"input": texts})
                return asyncio.create_task(work)

            computing = send("a")
            while not begun.is_set():
                await asyncio.sleep(0.01)
            waits, also = send("b"), send("c")
            while len(service.batcher._waiting) < 2:
                await asyncio.sleep(0.01)
            refused = await send("d")
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
            let.release(9)
            assert (await waits).status_code == (await also).status_code == 200
            assert [(await send("fail")).status_code, (await send("d")).status_code] == [500, 200]
            assert (await computing).status_code == 200

    _RUNNER.run(asyncio.wait_for(run(), 20))


def test_the_work_for_a_client_that_has_gone_is_given_up(encoder):
    service = Service(ServeOptions(model="m"), encoder, None)
    scope = {"type": "http", "method": "POST", "path": "/v1/embeddings", "query_string": b""}
    body = {"type": "http.request", "body": b'{"input": "ok"}'}
    receive = AsyncMock(side_effect=[body, body, {"type": "http.disconnect"}])
    send, app = AsyncMock(), create_app(service, [], 1000)  # nothing computes what waits
    _RUNNER.run(asyncio.wait_for(app({**scope, "headers": []}, receive, send), 20))
    assert send.call_args_list[0].args[0]["status"] == 499
    assert service.batcher._waiting[0].batch.cancelled()


def test_an_address_that_is_taken():
    with listen(ServeOptions(model="m", port=0)) as taken:
        assert taken.proto == socket.IPPROTO_TCP  # or an answer takes 40 ms longer
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"`port`={port}: cannot listen there"):
            listen(ServeOptions(model="m", port=port))


def test_texts_are_labelled_by_clusters(encoder):
    service = Service(ServeOptions(model="m"), encoder, None)
    body = {"input": ["where is my parcel", "thanks"]}
    assert post(create_app(service, [], 10**6), "/v1/clusters", **body).status_code == 404
    centres = encoder.encode(body["input"], normalize_embeddings=True)
    found = [{"id": 7, "name": "a", "least_similarity": 0.99}]
    found += [{"id": 9, "name": "b", "least_similarity": 1.01}]  # nothing is so near
    service.clusters = Clusters(found, centres, encoder, 10, {})
    first, second = post(create_app(service, [], 10**6), "/v1/clusters", **body).json()["data"]
    assert (first["index"], first["cluster"], first["name"]) == (0, 7, "a")
    assert first["similarity"] == pytest.approx(1, abs=1e-5)
    assert (second["index"], second["cluster"]) == (1, None)
