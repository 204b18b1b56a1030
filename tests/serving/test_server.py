"""`dcse serve` as its clients see it: a process with a small random encoder and a re-ranker."""

import asyncio
import base64
import concurrent.futures
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import cohere
import httpx
import numpy as np
import openai
import pytest
from tiny_bert import build_backbone, save_checkpoint
from tiny_reranker import save_reranker

from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.options import OptionError
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.serving.app import Service, create_app
from dcse_tf.serving.gate import Gate
from dcse_tf.serving.job import listen, read_keys
from dcse_tf.serving.model import ServedModel
from dcse_tf.serving.options import ServeOptions
from dcse_tf.serving.server import load_model

pytestmark = pytest.mark.slow

KEY = "a-key"
TEXTS = ["where is my parcel", "it left today", "好的发货", "", "thanks for the blue cup " * 9]
LIMITS = {"max_texts": 16, "max_characters": 300, "max_body_mb": 0.02, "timeout_s": 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return save_checkpoint(folder / "tiny", build_backbone()), save_reranker(folder / "reranker")


@pytest.fixture(scope="module")
def encoder(models):
    return SentenceEncoder.load(models[0])


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    """The process and its URL."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"another\n{KEY}\n")
    flags = {"model": models[0], "reranker": models[1], "port": 0, "api_key_file": keys}
    flags |= LIMITS | {"stop_delay_s": 1}
    command = [sys.executable, "-m", "dcse_tf.cli.serve"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process, process.stdout.readline().removeprefix("serving at ").strip()
        process.kill()


@pytest.fixture(scope="module")
def http(server):
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=server[1], headers=headers, timeout=20) as client:
        yield client


def test_openai_s_client_gets_the_encoder_s_embeddings(server, encoder):
    client = openai.OpenAI(base_url=f"{server[1]}/v1", api_key=KEY)
    expected = encoder.encode(TEXTS)
    assert client.models.list().data[0].id == "tiny"
    for form in ({}, {"encoding_format": "float"}, {"dimensions": 64}):  # base64 unless it is said
        found = client.embeddings.create(model="tiny", input=TEXTS, **form)
        rows = [each.embedding for each in found.data]
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        assert [each.index for each in found.data] == list(range(5))
        # [CLS] and [SEP] of each, and 4 + 3 + 4 + 0 + 45 words.
        assert found.usage.prompt_tokens == found.usage.total_tokens == 2 * 5 + 56
        assert not hasattr(found.usage, "truncated_texts")
    one = client.embeddings.create(model="tiny", input=TEXTS[0])
    np.testing.assert_allclose(one.data[0].embedding, expected[0], atol=1e-5)
    with pytest.raises(openai.BadRequestError, match="dimensions: this model's embeddings have"):
        client.embeddings.create(model="tiny", input="a", dimensions=32)
    with pytest.raises(openai.NotFoundError, match="this is tiny"):
        client.embeddings.create(model="text-embedding-3-small", input="a")
    with pytest.raises(openai.AuthenticationError, match="Give a key"):
        openai.OpenAI(base_url=f"{server[1]}/v1", api_key="wrong").models.list()


def test_truncated_texts_are_told_in_the_answer_and_counted(server, http):
    client = openai.OpenAI(base_url=f"{server[1]}/v1", api_key=KEY)
    texts = ["好" * 126, "好" * 127, "ok", "好" * 200]  # 126 and two special tokens fit
    usage = client.embeddings.create(model="tiny", input=texts).usage
    assert usage.prompt_tokens == 3 * 128 + 3
    assert usage.truncated_texts == 2
    assert 'dcse_truncated_texts_total{kind="embed"} 2.0' in http.get("/metrics").text


def test_blank_texts_are_never_the_best(http, encoder, models):
    context, responses = ["where is my parcel", "", "it left"], ["thanks", "", " \t", "ok"]
    found = http.post("/match", json={"context": context, "responses": responses}).json()
    expected = encoder.similarity(["where is my parcel", "it left"], ["thanks", "ok"])
    np.testing.assert_allclose(found["similarities"], [expected[0], -1e9, -1e9, expected[1]], 1e-5)

    given = {"query": "where is my parcel [EOT] it left", "documents": responses}
    results = http.post("/v2/rerank", json=given).json()["results"]
    assert [each["index"] for each in results[2:]] == [1, 2]
    assert [each["relevance_score"] for each in results[2:]] == [0.0, 0.0]

    async def scene():
        service = Service(ServeOptions(model="m"), ServedModel(encoder, None, "m", False))
        batcher = asyncio.create_task(service.batcher.run())
        scores, _ = await service.relevance(given["query"], responses)
        batcher.cancel()
        return scores

    scores = asyncio.run(scene())
    assert scores[1] == scores[2] == -1.0
    assert scores[[0, 3]].min() > -1.0


def test_cohere_s_client_and_jina_s_request_get_the_re_ranker_s_order(server, http, models):
    documents = ["thanks", "it left today", "i want a refund"]
    (logits,) = Reranker.load(models[1]).score([["where is", "my parcel"]], [documents])
    query = "where is [EOT] my parcel"
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    order = np.argsort(-scores).tolist()

    client = cohere.ClientV2(KEY, base_url=server[1])
    found = client.rerank(model="tiny", query=query, documents=documents, top_n=2)
    assert [each.index for each in found.results] == order[:2]
    got = [each.relevance_score for each in found.results]
    np.testing.assert_allclose(got, scores[order[:2]], atol=1e-5)

    given = [{"text": documents[0]}, *documents[1:]]
    found = http.post("/v1/rerank", json={"query": query, "documents": given}).json()
    assert [each["document"]["text"] for each in found["results"]] == [documents[i] for i in order]
    given = {"query": query, "documents": documents, "top_k": 1, "truncation": True}  # Voyage's
    found = http.post("/v1/rerank", json=given).json()
    assert [each["index"] for each in found["results"]] == order[:1]


def test_jina_s_request_says_the_form_and_the_length_of_embeddings(http, encoder):
    given = {"input": [{"text": text} for text in TEXTS], "model": "tiny", "task": "text-matching"}
    given |= {"dimensions": 64, "embedding_type": "base64", "normalized": True}
    found = http.post("/v1/embeddings", json=given).json()
    rows = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in found["data"]]
    expected = encoder.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(rows, expected, atol=1e-5)


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_curl_needs_no_header_but_the_key(server, encoder):
    command = ["curl", "--silent", "--header", f"Authorization: Bearer {KEY}", "--data"]
    command += [json.dumps({"input": TEXTS[2]}), f"{server[1]}/v1/embeddings"]
    (found,) = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["data"]
    np.testing.assert_allclose(found["embedding"], encoder.encode(TEXTS[2]), atol=1e-5)


def test_match_is_the_encoder_s_similarity(http, encoder):
    context, responses = ["where is my parcel", "it left"], ["thanks", "ok", "where is my parcel"]
    found = http.post("/match", json={"context": context, "responses": responses}).json()
    expected = encoder.similarity(context, responses)
    np.testing.assert_allclose(found["similarities"], expected, atol=1e-5)


def test_many_clients_at_once_get_what_each_gets_alone(http, encoder):
    rng = np.random.default_rng(1)
    asked = [rng.choice(TEXTS, size=rng.integers(1, 9)).tolist() for _ in range(60)]

    def ask(texts):
        found = http.post("/v1/embeddings", json={"input": texts}).json()
        return [each["embedding"] for each in found["data"]]

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, asked))
    for texts, rows in zip(asked, answers, strict=True):
        np.testing.assert_allclose(rows, encoder.encode(texts, show_progress=False), atol=1e-5)
    counted = http.get("/metrics").text
    assert 'dcse_requests_total{route="/v1/embeddings",status="200"}' in counted
    together = float(counted.split('dcse_batch_texts_count{kind="embed"} ')[1].split("\n")[0])
    texts = float(counted.split('dcse_texts_total{kind="embed"} ')[1].split("\n")[0])
    assert texts >= sum(map(len, asked)) > together


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/v1/embeddings", '{"input": ["a"', 400, "The body is not JSON"),
        ("POST", "/v1/embeddings", b'{"input": "\xff"}', 400, "The body is not JSON"),
        ("POST", "/v1/embeddings", "[" * 10_000, 400, "The body is not JSON"),
        ("POST", "/v1/embeddings", "", 400, "not a JSON object"),
        ("POST", "/v1/embeddings", "[]", 400, "not a JSON object"),
        ("POST", "/v1/embeddings", '{"input": []}', 400, "input: expected at least one text"),
        ("POST", "/v1/embeddings", '{"input": [1, 2]}', 400, "input: .*token ids"),
        (
            "POST",
            "/v1/embeddings",
            '{"input": [[5], [7]]}',
            400,
            "check_embedding_ctx_length=False",
        ),
        ("POST", "/v1/embeddings", '{"input": ["a", null]}', 400, r"input\[1\]: expected a string"),
        ("POST", "/v1/embeddings", '{"input": ["\\ud83d"]}', 400, r"input\[0\]: not a text"),
        ("POST", "/v1/embeddings", '{"input": {"text": "a"}}', 400, "input: expected a list"),
        ("POST", "/v1/embeddings", json.dumps({"input": ["a"] * 17}), 400, "17 texts, .* 16"),
        ("POST", "/v1/embeddings", json.dumps({"input": ["", "a" * 301]}), 400, r"input\[1\]: 301"),
        ("POST", "/v1/embeddings", '{"input": "a", "encoding_format": "int8"}', 400, "encoding"),
        ("POST", "/v1/embeddings", "a" * 20_001, 413, "more than 20,000 bytes"),
        ("GET", "/v1/embeddings", "", 405, "Method Not Allowed"),
        ("POST", "/v1/completions", "{}", 404, "nothing at this path"),
        ("POST", "/v1/rerank", '{"query": "a", "documents": []}', 400, "documents: expected"),
        ("POST", "/v2/rerank", '{"query": "\\ud83d", "documents": ["a"]}', 400, "query: "),
        ("POST", "/v2/rerank", '{"query": "a", "documents": ["a"], "top_n": 0}', 400, "top_n: "),
        ("POST", "/v2/rerank", '{"query": "a", "documents": [{"t": "a"}]}', 400, r"documents\[0\]"),
        ("POST", "/match", '{"context": [], "responses": ["a"]}', 400, "context: expected"),
        ("POST", "/match", '{"context": ["", " "], "responses": ["a"]}', 400, "context: .* blank"),
        ("POST", "/v2/rerank", '{"query": " ", "documents": ["a"]}', 400, "query: .* blank"),
        ("POST", "/v1/rerank", '{"query": "a", "documents": ["a"], "top": 1}', 400, "^top: is no"),
        ("POST", "/v1/embeddings", '{"input": "a", "late_chunking": true}', 400, "late_chunking: "),
        ("POST", "/v1/embeddings", '{"input": "a", "truncate": false}', 400, "truncate: "),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(http, method, path, body, status, message):
    answer = http.request(method, path, content=body)
    assert answer.status_code == status
    told = answer.json()
    if path.startswith("/v1/") and path != "/v1/rerank":
        told = told["error"]
        assert told["type"] == "invalid_request_error"
    text = told["detail"] if path == "/match" else told["message"]
    assert len(text.splitlines()) == 1
    assert re.search(message, text)


def test_who_has_no_key_is_asked_for_one_except_for_health(server):
    for headers in ({}, {"Authorization": KEY}, {"Authorization": "Bearer a-ke"}):
        answer = httpx.post(f"{server[1]}/match", headers=headers)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert httpx.get(f"{server[1]}/health").json() == {"status": "ok"}


def send_raw(server, *parts, pause=0.0):
    """Sends parts of a request; returns the answer up to the end of the connection."""
    host, port = server[1].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_a_long_body_without_a_length_and_a_late_one(server):
    head = f"POST /match HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n".encode()
    chunk = b"4e20\r\n" + b"a" * 20_000 + b"\r\n"
    chunked = send_raw(
        server, head, b"Transfer-Encoding: chunked\r\n\r\n", chunk, chunk, b"0\r\n\r\n"
    )
    assert chunked.startswith(b"HTTP/1.1 413 ")
    late = send_raw(server, head + b"Content-Length: 9\r\n\r\n", b"{", b'"', pause=0.6)
    assert late.startswith(b"HTTP/1.1 408 ")
    assert b"within 1 seconds" in late


def make_model(begun, let):
    """Takes a text for its length, and waits until it is let."""

    def compute(kind, items):
        begun.set()
        let.acquire(timeout=10)
        return [(np.full([2], len(text), np.float32), 1, False) for text in items]

    encoder = types.SimpleNamespace(dim=2, match=None)
    return types.SimpleNamespace(
        name="m", encoder=encoder, reranker=None, compute=compute, estimate_tokens=lambda text: 1
    )


def test_a_full_queue_and_a_client_that_goes_away():
    begun, let = threading.Event(), threading.Semaphore(0)
    options = ServeOptions(model="m", max_queue=2, max_texts=2)

    async def post(gate, texts, leave):
        """The status of a request whose client leaves when the event is set, and its headers."""
        said = []
        scope = {"type": "http", "method": "POST", "path": "/v1/embeddings", "headers": []}
        scope |= {"query_string": b"", "raw_path": b""}
        body = iter([{"type": "http.request", "body": json.dumps({"input": texts}).encode()}])

        async def receive():
            for message in body:
                return message
            await leave.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            said.append(message)

        await gate(scope, receive, send)
        return (said[0]["status"], dict(said[0]["headers"])) if said else (None, {})

    async def scene():
        service = Service(options, make_model(begun, let))
        gate = Gate(create_app(service), {"/v1/embeddings"}, [], 1000, 1.0)
        batcher = asyncio.create_task(service.batcher.run())
        never, leave = asyncio.Event(), asyncio.Event()
        computing = asyncio.create_task(post(gate, ["a"], never))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        leaves = asyncio.create_task(post(gate, ["b", "c"], leave))
        while service.batcher._items < 2:
            await asyncio.sleep(0.01)
        status, headers = await post(gate, ["d"], never)
        assert (status, headers[b"retry-after"]) == (429, b"1")
        leave.set()
        assert await leaves == (None, {})
        assert service.batcher._items == 0
        let.release(2)
        assert (await computing)[0] == (await post(gate, ["d"], never))[0] == 200
        batcher.cancel()

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_without_a_re_ranker_documents_are_ordered_by_cosine(encoder):
    """That of the mean of the query's turns; `unit_norm` changes the embeddings' length alone."""
    turns, documents = ["where is", "my parcel"], ["thanks", "my parcel", "it left"]

    async def scene(unit_norm):
        model = ServedModel(encoder, None, "m", unit_norm)
        service = Service(ServeOptions(model="m"), model)
        batcher = asyncio.create_task(service.batcher.run())
        scores, _ = await service.relevance(" [EOT] ".join(turns), documents)
        rows, *_ = await service.embed(documents)
        batcher.cancel()
        return scores, rows

    rows = encoder.encode([*turns, *documents], normalize_embeddings=True).astype(np.float64)
    context = rows[:2].mean(axis=0)
    for unit_norm in (False, True):
        scores, embeddings = asyncio.run(scene(unit_norm))
        np.testing.assert_allclose(scores, rows[2:] @ context / np.linalg.norm(context), atol=1e-5)
        expected = encoder.encode(documents, normalize_embeddings=unit_norm)
        np.testing.assert_allclose(embeddings, expected, atol=1e-5)


def test_truncated_embeddings_are_the_encoder_s(models, encoder):
    options = ServeOptions(model=str(models[0]), truncate_dim=24, unit_norm=True)
    service = Service(options, load_model(options))

    async def scene():
        batcher = asyncio.create_task(service.batcher.run())
        transport = httpx.ASGITransport(create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            answers = [
                await client.post("/v1/embeddings", json={"input": TEXTS, "dimensions": number})
                for number in (24, 64)
            ]
        batcher.cancel()
        return answers

    found, refused = asyncio.run(scene())
    rows = np.array([each["embedding"] for each in found.json()["data"]])
    short = SentenceEncoder(encoder.backend, truncate_dim=24)
    expected = short.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    whole = encoder.encode(TEXTS)[:, :24]
    np.testing.assert_allclose(
        rows, whole / np.linalg.norm(whole, axis=1, keepdims=True), atol=1e-5
    )
    assert "embeddings have 24" in refused.json()["error"]["message"]


def test_settings_that_no_server_can_have(tmp_path, monkeypatch):
    (tmp_path / "empty").write_text("\n")
    options = ServeOptions(model="m", api_key_file=str(tmp_path / "empty"))
    with pytest.raises(InputError, match=r"`api_key_file`=.*: expected one key a line, found none"):
        read_keys(options)
    (tmp_path / "marked").write_text("one\r\n\r\ntwo\r\n", encoding="utf-8-sig")
    marked = ServeOptions(model="m", api_key_file=str(tmp_path / "marked"))
    assert read_keys(marked) == ["one", "two"]  # the byte-order mark is no part of a key
    monkeypatch.setenv("DCSE_API_KEY", "of the environment")
    assert read_keys(ServeOptions(model="m")) == ["of the environment"]
    with listen(ServeOptions(model="m", port=0)) as taken:
        assert taken.proto == socket.IPPROTO_TCP  # or an answer takes 40 ms longer
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            InputError, match=f"`port`={port}: cannot listen there: Address already"
        ):
            listen(ServeOptions(model="m", port=port))
    with pytest.raises(OptionError, match="`max_texts`=9: would never fit into `max_queue`=8"):
        ServeOptions(model="m", max_texts=9, max_queue=8)


def test_sigterm_answers_what_is_asked_and_ends_with_status_0(server, http):
    """The last test of the file: the process ends."""
    process, url = server
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(0.2)
    health = httpx.get(f"{url}/health")
    assert (health.status_code, health.json()) == (503, {"status": "stopping"})
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda _: http.post("/v1/embeddings", json={"input": TEXTS}), range(20))
        assert {answer.status_code for answer in answers} == {200}
    assert process.wait(20) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
