"""Figures recorded before the package was rebuilt in November 2026, at commit 162b683.

Ten losses and gradient norms of each preset and architecture, the scores of an encoder on a corpus
whose every token can be read, and the contents of the folders written. Whatever is rebuilt, these
stay. `python tests/golden/test_golden.py` prints what the code computes now, in the file's form.
"""

import hashlib
import json
import pathlib
import sys
import tempfile

import numpy as np
import pytest
import safetensors.numpy
from lettered_corpus import TOKENS, prepare_sessions, write_sessions, write_vocabulary_folder

from dcse_tf.arguments import read_flags
from dcse_tf.tasks.train_options import TrainOptions

FILE = pathlib.Path(__file__).parent / "golden.json"
STEPS, DIM, LAYERS = 10, 16, 2
# Every step is logged, none is large, and nothing depends on how dropout layers are counted.
SMALL = {
    "global_batch_size": 8, "steps": STEPS, "warmup_steps": 3, "learning_rate": 0.003,
    "decay": "linear", "dev_samples": 0, "dropout": 0.0, "run_dir": "unused", "epochs": 1.0,
}  # fmt: skip
NEGATIVES = {"negatives": 3}
HEADS = {**NEGATIVES, "rehearsal_texts": 8, "projection_dim": 8}
GROUPS = {"auxiliary": ("none",), "negatives_from": "given", "negatives": 2, "data_dir": "given"}
SELECTION = {"task": "response_selection", "context_turns": 3}
LSTM = {**SELECTION, "encoder": "", "auxiliary": ("none",), "lstm_units": 6}
# A name, the preset and further settings.
CASES: dict[str, tuple[str, dict]] = {
    "dialogue_cse": ("dialogue_cse", NEGATIVES),
    "dialogue_cse plain": ("dialogue_cse", {**NEGATIVES, "batch_form": "plain"}),
    "dialogue_cse_i1": ("dialogue_cse_i1", NEGATIVES),
    "recommended": ("recommended", NEGATIVES),
    "centred, with adapters": ("recommended", {**NEGATIVES, "center_tokens": True, "lora_rank": 2}),
    "in_domain": ("in_domain", HEADS),
    "all behind heads": ("in_domain", {**HEADS, "projection_share": 1.0}),
    "cosine": ("cosine", NEGATIVES),
    "dse": ("dse", {"matryoshka_dims": ("4",)}),
    "simcse": ("simcse", {"dropout": 0.1}),
    "siamese_single": ("siamese_single", NEGATIVES),
    "siamese_multi": ("siamese_multi", {**NEGATIVES, "context_tokens": 32}),
    "mlm": ("mlm", {"mask_rate": 0.4}),
    "BERT-VFT's post-training": ("", {"task": "post_training"}),
    "BERT-FP's post-training": ("fine_grained", {}),
    "BERT-SL": ("", {**SELECTION, "auxiliary_reads": "dialogue"}),
    "SA-BERT": ("", {**SELECTION, "auxiliary": ("none",), "speaker_embeddings": True}),
    "negatives of the corpus": ("", {**SELECTION, **GROUPS}),
    "DualLSTM": ("", {**LSTM, "architecture": "dual_lstm", "lstm_embedding_size": 6}),
    "ESIM": ("", {**LSTM, "architecture": "esim", "lstm_embedding_size": 6}),
}


def write_encoder(folder: pathlib.Path) -> None:
    """Writes a small BERT with weights that depend on nothing but NumPy."""
    rng = np.random.default_rng(7)
    sizes = {
        "attention.self.query": (DIM, DIM),
        "attention.self.key": (DIM, DIM),
        "attention.self.value": (DIM, DIM),
        "attention.output.dense": (DIM, DIM),
        "intermediate.dense": (32, DIM),
        "output.dense": (DIM, 32),
    }
    shapes = {
        "embeddings.word_embeddings.weight": (len(TOKENS), DIM),
        "embeddings.position_embeddings.weight": (300, DIM),
        "embeddings.token_type_embeddings.weight": (2, DIM),
    }
    for layer in range(LAYERS):
        for name, shape in sizes.items():
            shapes[f"encoder.layer.{layer}.{name}.weight"] = shape
            shapes[f"encoder.layer.{layer}.{name}.bias"] = shape[:1]
    tensors = {n: rng.normal(scale=0.2, size=s).astype(np.float32) for n, s in shapes.items()}
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        norms += [f"encoder.layer.{layer}.{x}.LayerNorm" for x in ("attention.output", "output")]
    for name in norms:
        tensors[f"{name}.weight"] = np.ones(DIM, np.float32)
        tensors[f"{name}.bias"] = np.zeros(DIM, np.float32)
    write_vocabulary_folder(folder)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "bert", "vocab_size": len(TOKENS), "hidden_size": DIM,
        "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 32,
        "hidden_act": "gelu", "max_position_embeddings": 300, "type_vocab_size": 2,
        "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def write_inputs(folder: pathlib.Path) -> dict[str, str]:
    """Dialogues, groups of candidates and an encoder, by the names that the cases give them."""
    from dcse_tf.data.corpus import PrepareOptions
    from dcse_tf.data.prepare import prepare

    turns = [2 + number % 7 for number in range(40)]
    for name in ("dialogues", "given"):
        (folder / name).mkdir()
    prepare_sessions(folder / "dialogues", turns, words=4)
    groups = [
        {
            "id": f"{n}:{n % 4 + 1}",
            "dialogue": str(n),
            "context": [{"role": "xy"[t % 2], "text": f"s{n} t{t} w{t}"} for t in range(n % 4 + 1)],
            "responder": "xy"[(n + 1) % 2],
            "candidates": [f"s{n} t{n % 4 + 1}", *(f"s{20 + n} t{t} w1" for t in range(3))],
            "labels": [1, 0, 0, 0],
        }
        for n in range(16)
    ]
    path = folder / "given/groups.jsonl"
    path.write_text("".join(json.dumps(group) + "\n" for group in groups))
    values = {"format": "candidates", "input": (str(path),), "dev_fraction": 0, "test_fraction": 0}
    values["vocab"] = str(write_vocabulary_folder(folder / "given/vocab"))
    prepare(PrepareOptions(**values, output_dir=str(folder / "given/data")))
    write_encoder(folder / "encoder")
    places = {"dialogues": "dialogues/data", "given": "given/data", "encoder": "encoder"}
    return {name: str(folder / place) for name, place in places.items()}


def train(case: str, inputs: dict[str, str]) -> list[tuple[float, float]]:
    """(loss, norm of the gradient before clipping) of each step, on one device."""
    import tensorflow as tf

    from dcse_tf.training.build import build_training

    preset, changes = CASES[case]
    _, of_preset = read_flags(TrainOptions, "train", [f"--preset={preset}"] if preset else [])
    values = {**of_preset, "data_dir": "dialogues", "encoder": "encoder", **SMALL, **changes}
    for name in ("data_dir", "encoder"):
        values[name] = inputs.get(values[name], values[name])
    training = build_training(TrainOptions.from_dict(values), strategy=tf.distribute.get_strategy())
    batches = training.batches()
    steps = [training.trainer.train(batches, 1) for _ in range(STEPS)]
    return [(step["loss"], step["gradient_norm"]) for step in steps]


def score(folder: pathlib.Path, encoder: str) -> dict[str, float]:
    """R@1, R@5 and MRR of the encoder as it is, for each kind of context, in percent."""
    import dcse_tf

    sessions = write_sessions(folder / "scored.jsonl", [3 + n % 5 for n in range(40)], words=3)
    output = folder / "results.json"
    dcse_tf.evaluate(model=encoder, response_selection=str(sessions), output=str(output))
    return {
        f"{result['task']}: {name}": value
        for result in json.loads(output.read_text())["results"]
        for name, value in result["scores"].items()
        if name.rpartition("_")[2] in ("r1", "r5", "mrr") and name.partition("_")[0] != "chance"
    }


def hash_files(folder: str) -> dict[str, str]:
    """The beginning of the SHA-256 of each file of a prepared corpus, but for what names paths."""
    paths = [path for path in pathlib.Path(folder).rglob("*") if path.suffix != ".json"]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in sorted(paths)
        if path.is_file()
    }


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, str]:
    return write_inputs(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def recorded() -> dict:
    return json.loads(FILE.read_text())


def test_prepared_corpora_have_the_recorded_bytes(inputs, recorded):
    for name, hashes in recorded["files"].items():
        assert hash_files(inputs[name]) == hashes


@pytest.mark.slow
def test_an_encoder_has_the_recorded_scores(inputs, recorded, tmp_path):
    assert score(tmp_path, inputs["encoder"]) == pytest.approx(recorded["scores"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_ten_steps_have_the_recorded_losses_and_gradients(case, inputs, recorded):
    np.testing.assert_allclose(train(case, inputs), recorded["steps"][case], rtol=1e-3)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        made = write_inputs(pathlib.Path(name))
        steps = {case: train(case, made) for case in CASES}
        found = {
            "files": {key: hash_files(made[key]) for key in ("dialogues", "given")},
            "scores": score(pathlib.Path(name), made["encoder"]),
            "steps": {k: [[float(f"{x:.6g}") for x in row] for row in v] for k, v in steps.items()},
        }
        json.dump(found, sys.stdout, indent=1)
