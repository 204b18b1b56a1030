"""Whatever reads texts: it warns once if their characters are unknown to its vocabulary."""

import json

import numpy as np
import pytest
import tokenizers
import tokenizers.models
import tokenizers.pre_tokenizers
from test_reranker_export import needs_onnx
from tiny_bert import build_backbone, save_checkpoint
from tiny_checkpoints import train_pieces, write_weights
from tiny_reranker import save_reranker

from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.unknown import UnknownTokens
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.encoder.static import _Encode
from dcse_tf.exporting.job import export
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.exporting.saved_model import make_requests
from dcse_tf.inspecting.corpus_report import inspect_data
from dcse_tf.inspecting.inspect_options import InspectOptions
from dcse_tf.reranker.reranker import Reranker

KNOWN = ["where is my parcel", "it left today . thanks"]  # 9 tokens
FOREIGN = ["您", "哪里", "什么时"]  # each character a token, none of them known


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("model") / "model", build_backbone())


def encode_from(folder):
    encoder = SentenceEncoder.load(folder)
    return lambda texts: encoder.encode(texts, show_progress=False)


def read_by_checkpoint(model, tmp_path):
    return encode_from(model)


def read_by_onnx(model, tmp_path):
    folder = tmp_path / "onnx"
    export(ExportOptions(run_dir=str(model), output_dir=str(folder), format="onnx"))
    return encode_from(folder)


def read_by_table(model, tmp_path):
    tokens = read_vocabulary(model).tokens
    entries = {token: place for place, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(entries, "[UNK]"))
    steps = tokenizers.pre_tokenizers
    characters = steps.Split(tokenizers.Regex(r"\p{Han}"), "isolated")
    tokenizer.pre_tokenizer = steps.Sequence([steps.Whitespace(), characters])
    return _Encode(tokenizer, np.eye(len(tokens), dtype=np.float32), False)


def read_by_reranker(model, tmp_path):
    reranker = Reranker.load(save_reranker(tmp_path / "run"))
    return lambda texts: reranker.score([texts[:1]], [texts[1:]], show_progress=False)


def read_by_inspection(model, tmp_path):
    def read(texts):
        turns = [{"role": "ab"[place % 2], "text": text} for place, text in enumerate(texts)]
        path = tmp_path / "corpus.jsonl"
        path.write_text(json.dumps({"session_id": "d", "turns": turns}) + "\n")
        files = {"input": (str(path),), "output_dir": str(tmp_path / "out"), "vocab": str(model)}
        inspect_data(InspectOptions(format="jsonl", overwrite=True, **files))

    return read


@pytest.mark.parametrize(
    "open_reader",
    [
        read_by_checkpoint,
        pytest.param(read_by_onnx, marks=needs_onnx),
        read_by_table,
        read_by_reranker,
        read_by_inspection,
    ],
)
def test_foreign_texts_are_warned_of_once(model, tmp_path, caplog, open_reader):
    read = open_reader(model, tmp_path)
    read(KNOWN)
    assert "[UNK]" not in caplog.text
    read([*KNOWN, *FOREIGN])
    read([*KNOWN, *FOREIGN])
    warnings = [record for record in caplog.records if "are [UNK]" in record.getMessage()]
    once = 2 if open_reader is read_by_inspection else 1  # each reading is a job of its own
    assert len(warnings) == once
    assert warnings[0].getMessage().startswith("6 of the ")


def test_the_texts_by_which_an_export_is_checked_are_not_warned_of(model, caplog):
    encoder = SentenceEncoder.load(model)
    make_requests(encoder.backend.graph, False)
    assert "[UNK]" not in caplog.text


def test_tokens_that_every_text_has_do_not_count(caplog):
    """[CLS] and [SEP] of 20 texts would make 5 of 55 tokens 5 of 95."""
    unknown = UnknownTokens(1, "[UNK]", 2)
    for number in range(20):
        unknown.add(np.array([2, *[7] * (2 + number % 2), 3]), 1)
    unknown.add(np.array([2, 1, 1, 1, 1, 3]), 1)
    assert not caplog.text
    unknown.add(np.array([2, 1, 3]), 1)
    assert "5 of the 55 tokens read are [UNK] (9.1%)" in caplog.text


def test_unknown_pieces_count(tmp_path, caplog):
    train_pieces(tmp_path, KNOWN * 20, 40)
    write_weights(tmp_path, "xlm-roberta", entries=len(read_vocabulary(tmp_path).tokens))
    encode_from(tmp_path)(["您 好 吗 您 好", "哪 里 什 么 时"])
    assert "are <unk>" in caplog.text
