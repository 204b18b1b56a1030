"""Small dialogues in the form of every input, prepared with the vocabulary of lettered_corpus."""

import json

import tensorflow as tf
from lettered_corpus import write_vocabulary_folder
from written_dialogues import json_lines

from dcse_tf.data.corpus import PrepareOptions
from dcse_tf.data.formats.reading import read_jsonl
from dcse_tf.data.prepare import prepare
from dcse_tf.data.records import parse_session, shard_paths
from dcse_tf.input_files import BadLines

DIALOGUES = {
    "a": [("x", "s0 t0"), ("y", "s0 t1"), ("x", "s0 t2")],
    "b": [("x", "s1 t0"), ("x", "w0 w1"), ("y", "s1 t1")],
    "c": [("x", "s2 t0"), ("y", "s2 t1")],
}


def tsv(dialogues):
    return "".join(f"{k}\t{r}\t{t}\n" for k, turns in dialogues.items() for r, t in turns)


def conversations(dialogues):
    messages = {k: [[{"sender": r, "text": t}] for r, t in own] for k, own in dialogues.items()}
    return json.dumps({k: {"messages": own} for k, own in messages.items()})


FORMATS = {"session_tsv": tsv, "jsonl": json_lines, "chitchat": conversations}


def run(folder, content, name="corpus", **settings):
    """Prepares a file of this content into folder / "data", all for training if not told."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    values = {"format": "session_tsv", "input": (str(path),), "output_dir": str(folder / "data")}
    values["vocab"] = str(write_vocabulary_folder(folder / "vocab"))
    values |= {"dev_fraction": 0.0, "test_fraction": 0.0}
    return prepare(PrepareOptions(**values | settings))


def read_records(folder, manifest, split="train"):
    return list(tf.data.TFRecordDataset(shard_paths(folder / "data", manifest.splits[split])))


def read_tokens(folder, manifest, split="train"):
    """Sessions as lists of turns as lists of ids, whatever their order."""
    records = read_records(folder, manifest, split)
    return sorted(parse_session(record)["token_ids"].to_list() for record in records)


def read_ids(folder, split):
    return {session_id for session_id, _ in read_jsonl(folder / f"data/{split}.jsonl", BadLines(0))}
