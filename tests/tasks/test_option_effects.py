"""Every option of a training has an effect: moved alone, it changes the rows or the step.

An option can be declared, checked and recorded, and still not reach what it is about. So each
number, switch and choice is moved, in a preset in whose training it matters.
"""

import dataclasses
import functools
import itertools
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from dialogue_files import run
from lettered_corpus import TOKENS, prepare_sessions
from test_given_candidates import lines, make_group

from dcse_tf.arguments import list_presets, read_flags
from dcse_tf.bert import bert
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.options import OptionError
from dcse_tf.tasks import TASKS
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.tasks.spec import Setup
from dcse_tf.training.build import build_training, read_inputs

pytestmark = pytest.mark.slow

STEP = 5  # after the warm-up, so that the forms of decay differ
COMMON = {field.name for field in dataclasses.fields(TrainOptions)}
# What changes neither the rows nor a step, by reason.
SILENT = {
    "has its value worked out, or is refused beside another": ["task", "epochs", "encoder_size"],
    "says how often something is written, and how much": [
        *("log_every", "save_every", "eval_every"),
    ],
    "is about dev data": ["dev_samples"],
    "divides the same computation": ["deterministic", "logical_cpus"],
}
# Trained on single utterances, this task has contexts in dev response selection alone.
SILENT_IN = {"simcse": ["context_turns", "context_side"]}
TUPLES = {"auxiliary": [("none",)], "matryoshka_dims": [("4",)]}
SMALL = {
    "global_batch_size": 8, "steps": 20, "warmup_steps": 4, "learning_rate": 0.01,
    "decay": "linear", "dev_samples": 0, "row_length": 64,
}  # fmt: skip
# Values at which a neighbouring value makes a difference, by the option's name.
SENSITIVE = {
    "negatives": 3, "session_turns": 4, "rehearsal_texts": 8, "projection_dim": 4,
    "context_tokens": 12, "max_context_tokens": 24, "max_response_tokens": 6, "max_predictions": 2,
    "mask_rate": 0.5,
}  # fmt: skip
# The presets of each task, and further settings without which an option has no meaning. The first
# are the quickest; what makes no difference in one is moved in the next.
CASES = {
    "dialogue_cse": [
        *(("dialogue_cse", {}), ("in_domain", {}), ("recommended", {}), ("dialogue_cse_i1", {})),
        *(("task_oriented", {}), ("cosine", {}), ("dse", {})),
    ],
    "siamese_single": [("siamese_single", {}), ("siamese_single", {"batch_form": "dense"})],
    "siamese_multi": [("siamese_multi", {}), ("siamese_multi", {"batch_form": "dense"})],
    "mlm": [("mlm", {})],
    "simcse": [("simcse", {})],
    "post_training": [("fine_grained", {})],
    "response_selection": [
        ("", {"auxiliary": ("next_session",), "context_turns": 3}),
        ("", {"auxiliary": ("consistency",)}),
        ("", {"auxiliary": ("none",), "data_dir": "given"}),
        ("", {"auxiliary": ("none",), "architecture": "esim", "encoder": "", "lstm_units": 4}),
    ],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    """Corpora and an encoder, by the names that `CASES` gives them."""
    folder = tmp_path_factory.mktemp("effects")
    for name in ("dialogues", "given", "encoder"):
        (folder / name).mkdir()
    turns = [3 + number % 6 for number in range(40)]
    prepare_sessions(folder / "dialogues", turns, words=6)
    scored = [
        make_group(n, [f"s{20 + n} t{i}" for i in range(3)], [2.0, 0.5, -1.0, 0.0], 2 + n % 4)
        for n in range(12)
    ]
    run(folder / "given", lines(*scored), format="candidates")

    config = {**bert.make_bert_config(1, 16, len(TOKENS)), "num_attention_heads": 2}
    backbone = bert.build_backbone(config, 0.0)
    bert.initialize_weights(backbone.trainable_variables, 3, 0.2)
    bert.save_backbone(folder / "encoder", backbone, config)
    read_vocabulary(folder / "dialogues/vocab").write(folder / "encoder")
    data = {name: str(folder / name / "data") for name in ("dialogues", "given")}
    return {"encoder": str(folder / "encoder"), **data}


def make_options(task: str, preset: str, changes: dict, folders: dict[str, str]) -> TrainOptions:
    _, given = read_flags(TrainOptions, "train", [f"--preset={preset}"] if preset else [])
    known = {field.name for field in dataclasses.fields(TASKS[task].options)}
    asked = {"data_dir": "dialogues", "encoder": "encoder", **changes}
    sensitive = dict(SENSITIVE)
    if asked.get("batch_form", given.get("batch_form")) != "dense":
        del sensitive["session_turns"]
    for name, needed in (("rehearsal_texts", "rehearsal_weight"), ("projection_dim",) * 2):
        if not given.get(needed):
            del sensitive[name]
    values = {
        **given,
        "run_dir": "unused",
        **SMALL,
        **{name: value for name, value in sensitive.items() if name in known},
        **{name: folders.get(value, value) for name, value in asked.items()},
    }
    return TASKS[task].options.from_dict({**values, "task": task})


def draw_rows(options: TrainOptions) -> dict[str, np.ndarray]:
    """The first batch."""
    inputs = read_inputs(options)
    resolved = options.resolve(inputs.manifest, inputs.positions)
    folder = pathlib.Path(options.data_dir)
    setup = Setup(resolved, folder, inputs.manifest, inputs.vocabulary)
    return next(iter(TASKS[options.task].make_dataset(setup, 0, 1).take(1)))


def take_step(options: TrainOptions, batch: dict) -> list[np.ndarray]:
    """The loss and the norm of the gradient, and the weights that the step leads to."""
    training = build_training(options, strategy=tf.distribute.get_strategy())
    training.trainer.optimizer.iterations.assign(STEP)
    tf.config.run_functions_eagerly(True)  # for a single step, quicker than making a graph
    try:
        found = training.trainer.train(iter([batch]), 1)
    finally:
        tf.config.run_functions_eagerly(False)
    weights = [variable.numpy() for variable in training.model.trainable_variables]
    return [np.array([found["loss"], found["gradient_norm"]]), *weights]


def equal(one: list, other: list) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


class Case:
    """A training, to be compared with others that differ in one option."""

    def __init__(self, options: TrainOptions):
        self.options = options
        self.batch = draw_rows(options)

    @functools.cached_property
    def step(self) -> list[np.ndarray]:
        return take_step(self.options, self.batch)

    def differs(self, name: str, value: object) -> bool:
        """Whether another value of an option is taken and makes a difference."""
        try:
            moved = self.options.replace(**{name: value})
            batch = draw_rows(moved)
        except OptionError:
            return False
        if batch.keys() != self.batch.keys() or not equal(
            [*batch.values()], [*self.batch.values()]
        ):
            return True
        return not equal(take_step(moved, self.batch), self.step)


def list_moves(field: dataclasses.Field, value: object) -> list:
    """Other values of an option, the first of which are most likely to matter."""
    if field.metadata["choices"]:
        found = list(field.metadata["choices"])
    elif isinstance(value, bool):
        found = [not value]
    elif isinstance(value, int):
        found = [value + 1, value - 1, 2 * value, value // 2]
    elif isinstance(value, float):
        found = [value + 0.5, value / 2, value - 0.5]
    else:
        found = TUPLES.get(field.name, [])
    return [other for other in found if other != value]


def find_silent(task: str, names: set[str], folders: dict[str, str]) -> list[str]:
    """Those of the options that make no difference in any case of the task."""
    fields = {field.name: field for field in dataclasses.fields(TASKS[task].options)}
    left = [n for n in names if list_moves(fields[n], fields[n].default) or n in TUPLES]
    for preset, changes in CASES[task]:
        case = Case(make_options(task, preset, changes, folders))
        still = []
        for name in left:
            moves = list_moves(fields[name], getattr(case.options, name))
            if not any(case.differs(name, value) for value in moves):
                still.append(name)
        left = still
        if not left:
            break
    return left


def test_the_options_of_all_tasks_have_an_effect(folders):
    silent = {*itertools.chain(*SILENT.values())}
    assert not find_silent("simcse", COMMON - silent, folders)
    # Those that are listed as silent are known, and the comparison itself finds no difference.
    assert silent <= COMMON
    case = Case(make_options("simcse", "simcse", {}, folders))
    assert not case.differs("eval_every", 7)


@pytest.mark.parametrize("task", CASES)
def test_the_options_of_a_task_have_an_effect(task, folders):
    own = {field.name for field in dataclasses.fields(TASKS[task].options)} - COMMON
    assert not find_silent(task, own - {*SILENT_IN.get(task, [])}, folders)


def test_every_task_and_preset_has_a_case():
    assert set(CASES) == set(TASKS)
    presets = {preset for cases in CASES.values() for preset, _ in cases if preset}
    assert presets == {p.name for p in list_presets("train") if "/" not in p.name} - {"debug"}
