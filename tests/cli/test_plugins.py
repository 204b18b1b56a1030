"""What a package of somebody else adds: a task and a corpus format, by the public registries."""

import json
import subprocess
import sys

import pytest
from written_dialogues import make_dialogues

from dcse_tf.data.corpus import PrepareOptions
from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import FORMATS, register_format
from dcse_tf.data.prepare import prepare
from dcse_tf.evaluation import evaluate as evaluate_job
from dcse_tf.evaluation.evaluate import EvaluateOptions
from dcse_tf.input_files import read_lines
from dcse_tf.options import OptionError, option
from dcse_tf.tasks import TASKS, register_task
from dcse_tf.tasks.spec import Term
from dcse_tf.tasks.train_options import BatchOptions, TrainOptions
from dcse_tf.training.train import train

pytestmark = pytest.mark.slow


class MarginOptions(BatchOptions):
    help = "responses above their negatives by a margin"
    scores, percent = ("loss",), False

    task: str = "margin"
    learning_rate: float = 1e-3
    margin: float = option(0.3, "How much a response exceeds its negatives.", minimum=0.0)

    def list_terms(self, setup):
        return [Margin(setup)]


class Margin(Term):
    name = "margin"

    def __init__(self, setup):
        super().__init__(setup, 1.0)
        self.label = ""

    def draw(self, step):
        from dcse_tf.data.responses import draw_candidates

        return draw_candidates(step, self.setup.options.negatives)

    def compute(self, encoded, rows):
        from keras import ops

        from dcse_tf.matching.pair_similarity import build_pair_similarity

        context = (rows["context"], rows["turn_mask"])
        compare = build_pair_similarity("cosine")
        of_all = compare(encoded.table, encoded.padding_mask, *context)
        similarity = ops.take_along_axis(of_all, rows["candidates"], axis=1)
        excess = ops.relu(self.setup.options.margin - similarity[:, :1] + similarity[:, 1:])
        real = ops.cast(rows["candidate_mask"][:, 1:], "float32")
        return {"loss": ops.sum(excess * real, axis=1)}


def read_slashes(path, bad_lines):
    """A session a line, its turns with slashes between them."""
    for number, line in read_lines(path, bad_lines):
        turns = [Utterance(str(place % 2), text) for place, text in enumerate(line.split("/"))]
        if len(turns) > 1:
            yield f"line-{number}", turns
        else:
            bad_lines.report(path, number, "expected two turns with a slash between them")


@pytest.fixture
def plugged():
    """As if a plug-in had been loaded."""
    register_task(MarginOptions)
    register_format("slashes", read_slashes, help="a session a line, slashes between turns")
    yield
    del TASKS["margin"], FORMATS["slashes"]


def test_a_task_and_a_format_of_somebody_else_train_and_are_evaluated(plugged, tmp_path):
    log = tmp_path / "chats.txt"
    sessions = ("/".join(turn["text"] for turn in d["turns"]) for d in make_dialogues(60))
    log.write_text("\n".join(sessions) + "\n")
    data, run = str(tmp_path / "data"), tmp_path / "run"
    prepare(
        PrepareOptions(
            format="slashes",
            input=(str(log),),
            output_dir=data,
            vocab_size=300,
            dev_fraction=0.25,
            test_fraction=0.25,
        ),
        None,
    )
    options = {"data_dir": data, "run_dir": str(run), "encoder_size": "tiny", "margin": 0.5}
    options |= {"global_batch_size": 8, "negatives": 3, "eval_every": 2}
    outcome = train(TASKS["margin"].options(steps=2, **options))
    assert 0.0 < outcome.scores["dev/loss"] < 3.0 * (0.5 + 2.0)
    assert "dev/cosine_r1" in outcome.scores
    config = json.loads((run / "config.json").read_text())
    assert (config["task"], config["margin"], config["learning_rate"]) == ("margin", 0.5, 1e-3)

    # It is resumed like any other, and its own option counts among those that may not change.
    again = TASKS["margin"].options(steps=4, **options)
    assert train(again).kept.last_step == 4
    with pytest.raises(ValueError, match=r"`margin`: 0.1"):
        train(again.replace(margin=0.1))

    results = evaluate_job.evaluate(
        EvaluateOptions(model=str(run), response_selection=(f"{data}/test.jsonl",), candidates=3)
    )
    assert results


def test_its_options_are_the_tasks_own(plugged):
    common = {"data_dir": "data", "run_dir": "run", "encoder_size": "tiny"}
    with pytest.raises(OptionError, match="unknown setting margin"):
        TrainOptions.from_dict({**common, "margin": 0.1})
    with pytest.raises(OptionError, match=r"`margin`=-1.0: expected at least 0"):
        TrainOptions.from_dict({**common, "task": "margin", "margin": -1.0})
    with pytest.raises(OptionError, match=r"`best_metric`=dev/map: .* dev/loss, dev/cosine_r1"):
        TrainOptions.from_dict({**common, "task": "margin", "best_metric": "dev/map"})


def test_a_name_that_is_taken_is_refused(plugged):
    with pytest.raises(ValueError, match="'margin'"):
        register_task(MarginOptions)


def install(folder, text):
    """A package as pip installs one, whose entry point is a module that does something."""
    (folder / "toys.py").write_text(text)
    info = folder / "toys-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[dcse_tf.plugins]\ntoys = toys\n")


REGISTERS = """
from dcse_tf.options import option
from dcse_tf.tasks import register_task
from dcse_tf.tasks.train_options import TrainOptions

@register_task
class ToyOptions(TrainOptions):
    help = "a toy that jumps"
    task: str = "toy"
    jump: float = option(0.2, "How high a toy jumps.")
"""


@pytest.mark.parametrize(
    ("text", "flags", "status", "said"),
    [
        (REGISTERS, ["toy", "--help"], 0, "How high a toy jumps."),
        (REGISTERS, ["--jump=3"], 1, "Unknown command line flag 'jump'"),
        ("import nothing_of_this_name", ["--help"], 1, "plug-in toys (toys) cannot be loaded"),
    ],
)
def test_an_installed_package_is_known_to_the_command_line(
    tmp_path, no_tensorflow, text, flags, status, said
):
    install(tmp_path, text)
    environment = {
        **no_tensorflow,
        "PYTHONPATH": f"{tmp_path}:{no_tensorflow['PYTHONPATH']}",
    }
    command = [sys.executable, "-m", "dcse_tf.cli", "train", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == status
    assert said in " ".join((done.stdout + done.stderr).split())
