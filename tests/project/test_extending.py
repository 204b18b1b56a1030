"""The page on extending is true: its examples work as they are printed."""

import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]

# For a few small steps, optimizing graphs costs more than running them.
PLAIN = "import tensorflow as tf; "
PLAIN += 'tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})'
USE = """
import pathlib

import dcse_tf

pathlib.Path("chats.txt").write_text(
    "\\n---\\n".join(
        f"ann: is the {thing} here\\nbob: the {thing} comes at {hour}\\nann: at {hour} then"
        for thing in ("lamp", "chair", "book", "coat", "phone", "kettle", "camera", "ring")
        for hour in ("one", "two", "three", "four", "five", "six", "seven", "eight")
    )
)
prepared = dcse_tf.prepare_data(
    format="chat_log", input="chats.txt", vocab_size=100, test_fraction=0.3, output_dir="data"
)
print("sessions:", sum(split.sessions for split in prepared.splits.values()))

trained = dcse_tf.train(
    task="margin", margin=0.3, data_dir="data", encoder_size="tiny", steps=2,
    global_batch_size=4, negatives=3, run_dir="run",
)
print("trained:", trained.kept.describe())

dcse_tf.train(
    task="dialogue_cse", size_weight=0.1, data_dir="data", encoder_size="tiny", steps=1,
    global_batch_size=4, negatives=3, run_dir="sized", dev_samples=0,
)

dcse_tf.fit_baseline(
    kind="scaling", strength=0.5, encoder="run", data_dir="data", output_dir="scaled"
)
dcse_tf.export(run_dir="run", output_dir="vectors", format="vectors")
lines = pathlib.Path("vectors/vectors.txt").read_text().splitlines()
assert "of 100 tokens" in pathlib.Path("vectors/model_card.md").read_text()
print("exported:", len(lines), lines[0])
results = dcse_tf.evaluate(model="scaled", response_selection="data/test.jsonl")
print("evaluated:", [result.task for result in results])
"""


def test_the_examples_work_together(tmp_path):
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(examples) == 5

    run = subprocess.run(
        [sys.executable, "-c", "\n".join([PLAIN, *examples, USE])],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert run.returncode == 0, run.stderr[-2000:]
    assert "sessions: 64" in run.stdout
    assert "trained: step 2" in run.stdout
    assert "exported: 101 100 " in run.stdout
    assert "evaluated:" in run.stdout
