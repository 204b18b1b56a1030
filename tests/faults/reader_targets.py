"""Everything that reads a file: what it is given, and what a whole one looks like.

A reader either takes a file or raises InputError with the file's name, on one line.
"""

import dataclasses
import gzip
import hashlib
import io
import json
import pathlib
import zipfile
from collections.abc import Callable, Mapping

import numpy as np
import safetensors.numpy
import tensorflow as tf

from dcse_tf.baselines.files import read_baseline
from dcse_tf.bert import checkpoints, sentence_modules, vectors, weights
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.wordpiece import SPECIAL_TOKENS
from dcse_tf.data import records
from dcse_tf.data.dialogue import make_session, session_to_dict
from dcse_tf.data.formats import FORMATS
from dcse_tf.data.manifest import FORMAT_VERSION, Index, Shard, Split, read_blocks, read_manifest
from dcse_tf.data.records import count_records
from dcse_tf.errors import InputError
from dcse_tf.evaluation.report import read_json
from dcse_tf.evaluation.retrieval import read_retrieval_set
from dcse_tf.evaluation.sts import read_sts_set
from dcse_tf.input_files import BadLines, iterate_bare_lines
from dcse_tf.search.index import CorpusTexts
from dcse_tf.sets.labelled_sentences import read_sentences
from dcse_tf.sets.set_options import BuildRetrievalOptions
from dcse_tf.sets.sts_set import read_sheet

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures"


@dataclasses.dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        file: the name of the file that it is given.
        read: reads that file's path.
        seeds: contents that it takes.
        others: files beside it, which stay as they are.
    """

    file: str
    read: Callable[[pathlib.Path], object]
    seeds: tuple[bytes, ...]
    others: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


def try_content(target: Target, folder: pathlib.Path, content: bytes) -> str:
    """Has a target read a content in a folder.

    Returns:
        What InputError said, or "" if the content was taken.

    Raises:
        AssertionError: the error names neither the file nor one beside it, or has several lines.
        Exception: whatever the reader should not have raised.
    """
    for name, other in target.others.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(other)
    path = folder / target.file
    path.write_bytes(content)
    try:
        target.read(path)
    except InputError as error:
        said = str(error)
        assert f"{folder}/" in said, f"names no file: {said}"
        assert len(said.splitlines()) == 1, f"several lines: {said!r}"
        return said
    return ""


def _read_corpus(name: str) -> Callable[[pathlib.Path], object]:
    def read(path: pathlib.Path) -> None:
        for session_id, turns in FORMATS[name].read(path, BadLines(3)):
            session = session_to_dict(make_session(session_id, turns))
            json.dumps(session, ensure_ascii=False).encode()  # as prepare_data writes it

    return read


def _read_table(path: pathlib.Path) -> None:
    config = BuildRetrievalOptions(
        format=path.suffix[1:], input=(str(path),), output="none", max_bad_lines=3
    )
    for sentence, intents in read_sentences(config, str.split)[0]:
        "\t".join([sentence, *intents]).encode()


def _read_record(path: pathlib.Path) -> None:
    """The content as a record of a shard: what is in it lies, its checksum is right."""
    shard = str(path.with_suffix(".tfrecord"))
    with tf.io.TFRecordWriter(shard) as writer:
        writer.write(path.read_bytes())
    assert count_records(shard) == 1


def _read_blocks(path: pathlib.Path) -> None:
    """The content as an index of two shards: what is in it lies, its checksum is right."""
    shards = tuple(Shard(f"train-{number}", size) for number, size in enumerate((93, 36)))
    index = Index(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    read_blocks(path.parent, Split(4, 20, 60, 0, shards, index))


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _zip(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("dialogues.jsonl", content)
    return file.getvalue()


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


_DIALOGUE = {"session_id": "1", "turns": [{"role": "u", "text": "在吗", "intents": ["ask"]}] * 2}
_LINES = _json(_DIALOGUE) + b"\n" + _json({**_DIALOGUE, "session_id": 2}) + b"\r\n"
_CHITCHAT = {"c1": {"messages": [[{"sender": "a", "text": "hi"}], [{"sender": "b", "text": "ho"}]]}}
_SGD = [
    {
        "dialogue_id": "1_00",
        "turns": [
            {
                "speaker": "USER",
                "utterance": "A table for two",
                "frames": [{"state": {"active_intent": "ReserveTable"}}],
            },
            {"speaker": "SYSTEM", "utterance": "Which town?", "frames": [{}]},
        ],
    }
]
_CROSSWOZ = {
    "7": {
        "messages": [
            {"role": "usr", "content": "你好", "dialog_act": [["General", "greet", "", ""]]},
            {"role": "sys", "content": "您好", "dialog_act": []},
        ]
    }
}
_CORPORA = {
    "session_tsv": ("a.tsv", "1\tuser\t在吗\n1\tagent\t在的\n\n2\tuser\thi\n".encode()),
    "jsonl": ("a.jsonl", _LINES),
    "table": ("a.csv", b'session_id,role,text,time\n1,u,hi,2\n2,u,x,1\n1,a,"h ""o""",2.5\n'),
    "messages": (
        "a.jsonl",
        b'{"id": 1, "messages": [{"role": "user", "content": "hi"}, {"role": "bot"}]}\n[]\n',
    ),
    "chitchat": ("dataset.json", _json(_CHITCHAT)),
    "mdc": ("movie_all.tsv", (FIXTURES / "movie_all.tsv").read_bytes()),
    "jddc": ("chat.txt", "s1\tU7\t0\t0\t0\tnan\t[数字x]天\ns1\tU7\t1\t0\t0\tnan\t好\n".encode()),
    "ecd": ("train.txt", "1\t在 吗\t在 的\t好 的\n0\t在 吗\t在 的\t不\n".encode()),
    "dialoguecse": ("train_data.txt", "一|二|三\t五\t0|1|0-1-0\t1\t四|假\t1|0\n".encode()),
    "sgd": ("dialogues_001.json", _json(_SGD)),
    "crosswoz": ("train.json", _json(_CROSSWOZ)),
}
_RESULT = {
    "task": "sts",
    "source": "sts.txt",
    "fingerprint": "ab",
    "scores": {"spearman": 1.5, "tie_share": 0.0, "chance_spearman": 0.0},
    "intervals": {"spearman": [1.0, 2.0]},
    "items": {"degree": [1.0, 2.0]},
}
_SPLIT = {"sessions": 1, "utterances": 2, "tokens": 6, "truncated_utterances": 0}
_MANIFEST = {
    "format_version": FORMAT_VERSION,
    "max_sequence_length": 16,
    "corpus_fingerprint": "c",
    "tokenizer_fingerprint": "t",
    "splits": {
        name: {
            **_SPLIT,
            "shards": [{"name": "train-00000-of-00001.tfrecord", "bytes": 3}],
            "index": {"name": "train-blocks.npy", "sha256": "00"},
        }
        for name in ("train", "dev", "test")
    },
    "dropped": {"short_sessions": 0},
    "settings": {"format": "jsonl"},
}
_VOCABULARY = "\n".join([*SPECIAL_TOKENS, "a", "##b", "的", ""]).encode()
_TOKENIZER = {
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {token: index for index, token in enumerate(_VOCABULARY.decode().split())},
    },
}
_MODULES = [
    {"idx": index, "path": "", "type": f"sentence_transformers.models.{name}"}
    for index, name in enumerate(["Transformer", "Pooling"])
]
_BERT = {
    "model_type": "bert",
    "vocab_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "hidden_size": 4,
    "intermediate_size": 4,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
}
_TENSORS = safetensors.numpy.save({"bert.x.LayerNorm.gamma": np.ones(2, np.float32)})
_HALVES = safetensors.numpy.save({"y": np.ones((2, 2), np.float16), "z": np.zeros(0, np.int64)})
_RECORD = records.serialize_session("s", np.array([2, 5, 3, 2, 6, 3]), [3, 3], "ab")
_PLACES = np.array([[0, 0, 50, 1, 8], [0, 50, 43, 2, 9], [1, 0, 36, 1, 3]])
_VECTORS = {"a": [0.5, 1.0], "的": [0.25, -1.0]}
_MATRIX = np.array(list(_VECTORS.values()), np.float32)
_BINARY = b"2 2\na " + _MATRIX[0].tobytes() + b"\n\xe7\x9a\x84 " + _MATRIX[1].tobytes() + b"\n"

TARGETS: dict[str, Target] = {
    **{
        name: Target(file, _read_corpus(name), (content,))
        for name, (file, content) in _CORPORA.items()
    },
    "gzip": Target("a.jsonl.gz", _read_corpus("jsonl"), (gzip.compress(_LINES, mtime=0),)),
    "zip": Target("a.jsonl.zip", _read_corpus("jsonl"), (_zip(_LINES),)),
    "sentences": Target(
        "a.txt", lambda path: list(iterate_bare_lines(path)), ("一\n\nb\r\n".encode(),)
    ),
    "csv": Target("a.csv", _read_table, (b'text,intent\n"a ""b""",x\nc,\n',)),
    "tsv": Target("a.tsv", _read_table, (b"text\tintent\na b\tx\nc\t\n",)),
    "retrieval": Target(
        "select.txt", read_retrieval_set, (b"0\ta\tx\t1\t2\n1\tb\tx\t\t\n2\tc\ty\t\t\n",)
    ),
    "sts": Target("sts.txt", read_sts_set, (b"1.5\ta\tb\n4\tc\td\n",)),
    "sheet": Target("sheet.csv", read_sheet, (b"pair,first,second,degree\n1,a,b,3\n2,c,d,\n",)),
    "results": Target(
        "results.json", read_json, (_json({"model": "m", "settings": {}, "results": [_RESULT]}),)
    ),
    "vectors_text": Target(
        "a.txt", vectors.read_word_vectors, (b"2 2\na 1 2\nb 3 4\n", b"a 1 2 3\nb 4 5 6\n")
    ),
    "vectors_bin": Target("a.bin", vectors.read_word_vectors, (_BINARY,)),
    "vectors_json": Target("a.json", vectors.read_word_vectors, (_json(_VECTORS),)),
    "vectors_npz": Target(
        "a.npz",
        lambda path: vectors.read_word_vectors(path, path.with_name("words.json")),
        (_npz(matrix=_MATRIX),),
        {"words.json": b'{"a": 0, "b": 1}'},
    ),
    "vectors_index": Target(
        "words.json",
        lambda path: vectors.read_word_vectors(path.with_name("a.npz"), path),
        (b'{"a": 0, "b": 1}',),
        {"a.npz": _npz(matrix=_MATRIX)},
    ),
    "vocabulary": Target("vocab.txt", lambda path: read_vocabulary(path.parent), (_VOCABULARY,)),
    "tokenizer": Target(
        "tokenizer_config.json",
        lambda path: read_vocabulary(path.parent),
        (_json({"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}),),
        {"vocab.txt": _VOCABULARY},
    ),
    "tokenizer_json": Target(
        "tokenizer.json", lambda path: read_vocabulary(path.parent), (_json(_TOKENIZER),)
    ),
    "modules": Target(
        "modules.json",
        lambda path: sentence_modules.read_modules(path.parent),
        (_json(_MODULES),),
        {"config.json": b"{}"},
    ),
    "manifest": Target(
        "manifest.json",
        lambda path: read_manifest(path.parent),
        (_json(_MANIFEST),),
        {"train-00000-of-00001.tfrecord": b"abc"},
    ),
    "blocks": Target("train-blocks.npy", _read_blocks, (_npy(_PLACES),)),
    "index_texts": Target(
        "texts.npy",
        lambda path: list(CorpusTexts(path.parent)),
        (_npy(np.array([[2, 1, 2], [6, 3, 1]])),),
        {"texts.txt": "a\n的\n".encode()},
    ),
    "record": Target("record", _read_record, (_RECORD,)),
    "weights": Target(
        "model.safetensors",
        lambda path: weights.read_tensors(path.parent),
        (_TENSORS, _HALVES),
    ),
    "weights_index": Target(
        "model.safetensors.index.json",
        lambda path: weights.read_tensors(path.parent),
        (_json({"weight_map": {"x": "model-1.safetensors"}}),),
        {"model-1.safetensors": _TENSORS},
    ),
    "bert_config": Target(
        "config.json", lambda path: checkpoints.read_config(path.parent), (_json(_BERT),)
    ),
    "sentence_config": Target(
        "sentence_bert_config.json",
        lambda path: checkpoints.read_max_sequence_length(path.parent),
        (_json({"max_seq_length": 16, "do_lower_case": False}),),
    ),
    "baseline": Target(
        "baseline.json",
        lambda path: read_baseline(path.parent).make_encode(),
        (_json({"kind": "word_vectors", "facts": {"word_unit": "words", "words": ["a", "的"]}}),),
        {"baseline.safetensors": safetensors.numpy.save({"matrix": _MATRIX})},
    ),
}
