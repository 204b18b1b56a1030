"""Fixtures for several test files: two logical CPU devices, and a small corpus of dialogues."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gc
import pathlib
import re
import types
from collections.abc import Iterator

import hypothesis
import pytest
from written_dialogues import json_lines, make_dialogues

from dcse_tf.data.corpus import PrepareOptions

# The same examples every time; tests/faults/fuzz.py tries others.
hypothesis.settings.register_profile("same_examples", derandomize=True)
hypothesis.settings.load_profile("same_examples")


def pytest_configure(config: pytest.Config) -> None:
    """Configures TensorFlow before it starts: two logical CPU devices for data-parallel training.

    A process that only distributes the tests to others needs no TensorFlow.
    """
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    # For a few small steps, optimizing a graph costs more than running it. Jobs that tests start in
    # separate processes still optimize their graphs, as for users.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    # Excludes what has been imported, which stays anyway, from garbage collections; these would
    # come often while a graph is traced, which leaves little garbage.
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the folders of long files, so that two processes end at about the same time."""
    long = ("exporting", "faults", "golden", "project", "spark", "tasks", "training")
    items.sort(key=lambda item: item.path.parent.name not in long)


@pytest.fixture(scope="session")
def dialogues_file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("corpus") / "dialogues.jsonl"
    path.write_text(json_lines(make_dialogues(120)))
    return path


@pytest.fixture(scope="session")
def data_dir(
    dialogues_file: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> pathlib.Path:
    """The corpus, prepared with a vocabulary trained on it."""
    from dcse_tf.data.prepare import prepare

    folder = tmp_path_factory.mktemp("prepared") / "data"
    config = PrepareOptions(
        format="jsonl", input=(str(dialogues_file),), output_dir=str(folder), vocab_size=300,
        max_sequence_length=16, dev_fraction=0.2, test_fraction=0.2, shards=3,
    )  # fmt: skip
    prepare(config)
    return folder


@pytest.fixture(scope="session")
def trained_run(data_dir: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The run directory of a few steps of `recommended` on the corpus, from a tiny random BERT."""
    import dcse_tf

    folder = tmp_path_factory.mktemp("trained") / "run"
    dcse_tf.train(
        preset="recommended", data_dir=str(data_dir), encoder_size="tiny", run_dir=str(folder),
        steps=6, global_batch_size=8, learning_rate=1e-3, log_every=2, eval_every=6, save_every=3,
        dev_samples=16,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A checkpoint of a tiny random BERT, which tests only read."""
    from tiny_bert import build_backbone, save_checkpoint

    return save_checkpoint(tmp_path_factory.mktemp("saved") / "model", build_backbone())


@pytest.fixture(scope="session")
def rerankers(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, pathlib.Path]:
    """Run directories of small random re-rankers, by whether the model knows who speaks."""
    from tiny_reranker import save_reranker

    folder = tmp_path_factory.mktemp("rerankers")
    return {known: save_reranker(folder / str(known), known) for known in (False, True)}


@pytest.fixture
def optimized_graphs() -> Iterator[None]:
    """Lets TensorFlow optimize graphs, so that this process gets the same bits as jobs' own do."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture
def verified_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifies written SavedModels in this process, for tests that are about something else.

    The fresh process that test_saved_model and test_end_to_end use takes seconds.
    """
    from dcse_tf.exporting import fresh_process, probes, saved_model

    answer = fresh_process.answer
    monkeypatch.setattr(saved_model, "_answer", lambda folder: answer(str(folder), probes.TEXTS))


@pytest.fixture
def printed_examples() -> Iterator[types.ModuleType]:
    """What docs/extending.md prints, registered as if a plug-in had been loaded."""
    from dcse_tf.baselines.registry import BASELINES
    from dcse_tf.data.formats import FORMATS
    from dcse_tf.exporting.export_formats import FORMATS as EXPORTS
    from dcse_tf.tasks import TASKS

    registries = (BASELINES, EXPORTS, FORMATS, TASKS)
    before = [dict(entries) for entries in registries]
    page = (pathlib.Path(__file__).parents[1] / "docs/extending.md").read_text()
    printed = types.ModuleType("printed")

    def run(text: str) -> None:
        for example in re.findall(r"(?ms)^```python\n(.*?)^```$", text):
            exec(example, alone := {"__name__": "printed"})  # each is a file of its own
            vars(printed).update(alone)

    run(page)
    vars(printed).update(page=page, run=run)
    yield printed
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)
