"""The jobs as a user runs them, on dialogues written for it.

Export has a process of its own here; training and embedding in tests/faults, preparation and a
whole session with evaluation in test_wheel.
"""

import contextlib
import io
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from train_options import read_scalars

from dcse_tf.cli.commands import main
from dcse_tf.encoder.sentence_encoder import SentenceEncoder

ROOT = pathlib.Path(__file__).parents[2]

# A process that has nothing of this package, only TensorFlow and its text operations.
SERVE = """
import sys
import numpy as np, tensorflow as tf, tensorflow_text
signature = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
sentences = open(sys.argv[2], encoding="utf-8").read().splitlines()
np.save(sys.argv[3], signature(sentences=tf.constant(sentences))["embeddings"].numpy())
assert not any(name.startswith(("dcse_tf", "keras_hub")) for name in sys.modules)
"""
RANKS = ("r1", "r2", "r5", "mrr")
SENTENCES = ["Where is my parcel?", "", "我的包裹在哪里", "Café, ÉCOLE!"]
SENTENCES += ["Where is my parcel?", "a" * 300]
PREPARE = ["--format=jsonl", "--vocab_size=300", "--max_sequence_length=16"]
PREPARE += ["--dev_fraction=0.2", "--test_fraction=0.2"]
TRAIN = ["--encoder_size=tiny", "--steps=4", "--global_batch_size=8", "--negatives=3"]
TRAIN += ["--learning_rate=0.003", "--freeze_layers=0", "--deterministic"]
TRAIN += ["--save_every=2", "--eval_every=4", "--log_every=2"]


def run(job, *flags):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        main([job, *map(str, flags)])
    return said.getvalue()


@pytest.fixture(scope="module")
def trained(dialogues_file, tmp_path_factory):
    """prepare_data and train: the folder that holds data/ and run/."""
    folder = tmp_path_factory.mktemp("job")
    files = [f"--input={dialogues_file}", f"--output_dir={folder}/data"]
    printed = run("prepare_data", *PREPARE, *files)
    assert f"manifest.json are in {folder}/data" in printed
    files = [f"--data_dir={folder}/data", f"--run_dir={folder}/run"]
    printed = run("train", *TRAIN, *files)
    assert f"the trained model is in {folder}/run/encoder" in printed
    assert "4 of 4 steps" in printed
    return folder


def test_summaries_hold_every_scalar(trained):
    tags = set(read_scalars(trained / "run"))
    similarity = {"positive_similarity", "negative_similarity"}
    train = {"loss", "accuracy", "learning_rate", "gradient_norm", *similarity}
    train |= {"samples_per_second", "tokens_per_second"}
    dev = {f"eval/dev/{x}_{rank}" for x in ("matching", "cosine") for rank in RANKS}
    assert {*train, *dev, "configuration"} <= tags


def test_embeddings_are_the_same_from_run_export_and_checkpoint(trained):
    sentences = trained / "sentences.txt"
    sentences.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    export = ["export", f"--run_dir={trained}/run", f"--output_dir={trained}/export"]
    subprocess.run([sys.executable, "-m", "dcse_tf.cli", *export], check=True, cwd=ROOT)
    assert "turns by mean: the signature match |" in (trained / "export/model_card.md").read_text()
    files = [f"--input={sentences}", f"--output={trained}/run.npy"]
    run("embed", f"--model={trained}/run", *files)
    arrays = [np.load(trained / "run.npy")]
    for model in ("run/encoder", "export"):
        arrays.append(SentenceEncoder.load(trained / model).encode(SENTENCES))
    serve = [sys.executable, "-c", SERVE, trained / "export", sentences, trained / "served.npy"]
    subprocess.run(list(map(str, serve)), check=True, cwd=trained, capture_output=True)
    arrays.append(np.load(trained / "served.npy"))
    for array in arrays:
        assert array.shape == (len(SENTENCES), 128)
        np.testing.assert_allclose(array, arrays[0], atol=1e-5)
    np.testing.assert_array_equal(arrays[0][0], arrays[0][4])
    assert np.abs(arrays[0][0] - arrays[0][2]).max() > 1e-3
