"""Who a worker is, what it feeds and sends, and what its commands refuse."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from train_options import make_options

from dcse_tf.errors import InputError
from dcse_tf.training.build import build_training
from dcse_tf.training.controller import WorkersError, name_lost_workers
from dcse_tf.training.trainer import Worker, read_worker


def _config(cluster, kind="worker", index=0):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


@pytest.mark.parametrize(
    ("environment", "worker"),
    [
        ({}, Worker(0, 1)),
        ({"TF_CONFIG": " "}, Worker(0, 1)),
        (_config({"worker": ["a:1", "b:2"]}, index=1), Worker(1, 2, "b:2")),
        # TensorFlow numbers a chief before the workers.
        (_config({"worker": ["a:1", "b:2"], "chief": ["c:3"]}), Worker(1, 3, "a:1")),
        (_config({"worker": ["a:1", "b:2"], "chief": ["c:3"]}, "chief"), Worker(0, 3, "c:3")),
    ],
)
def test_a_worker_is_known_by_tf_config(environment, worker):
    assert read_worker(environment) == worker
    assert worker.is_chief == (worker.index == 0)


@pytest.mark.parametrize("environment", [
    *({"TF_CONFIG": text} for text in ("workers", "[]", '{"cluster": {"worker": ["a:1"]}}')),
    *(_config({"worker": addresses}) for addresses in ("a:1", ["a"], [1])),
    *(_config({"worker": ["a:1"]}, index=index) for index in (1, -1, "first")),
    _config({"worker": ["a:1"]}, kind="chief"),
])  # fmt: skip
def test_another_tf_config_is_refused_with_what_was_expected(environment):
    with pytest.raises(InputError, match=r'TF_CONFIG: expected .*"cluster"'):
        read_worker(environment)


@pytest.mark.parametrize("kind", ["ps", "evaluator"])
def test_tasks_that_do_not_train_are_refused_by_name(kind):
    with pytest.raises(InputError, match=f"{kind}: expected only workers"):
        read_worker(_config({"worker": ["a:1"], kind: ["b:2"]}))


@pytest.mark.parametrize("kind", ["UnavailableError", "AbortedError", "CancelledError"])
def test_a_lost_worker_is_one_sentence_and_other_errors_stay(kind):
    kind = getattr(tf.errors, kind)
    lost = kind(None, None, "Collective ops is aborted by: ...")
    with pytest.raises(WorkersError, match="another worker has ended"), _two():
        raise lost
    with pytest.raises(tf.errors.InvalidArgumentError), _two():
        raise tf.errors.InvalidArgumentError(None, None, "shapes")
    with pytest.raises(kind), name_lost_workers(Worker()):
        raise lost


def _two():
    return name_lost_workers(Worker(0, 2))


@pytest.mark.parametrize(("index", "own"), [(0, range(2)), (1, range(2, 4))])
def test_each_worker_has_replicas_of_its_own(index, own):
    """Of the four of two workers; a worker alone has all."""
    assert read_worker({}).own_replicas(4) == range(4)
    assert read_worker(_config({"worker": ["a:1", "b:2"]}, index=index)).own_replicas(4) == own


_TASKS = {
    "dialogue_cse": {"batch_form": "dense", "negatives": 3},
    "mlm": {},
    "response_selection": {"context_turns": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("task", _TASKS)
def test_a_worker_makes_the_batches_of_its_own_replicas(data_dir, task):
    settings = {"encoder_size": "tiny", "global_batch_size": 8, "logical_cpus": 2, **_TASKS[task]}
    options = make_options(task=task, data_dir=str(data_dir), run_dir="unused", **settings)
    training = build_training(options)  # on two devices
    whole = list(training.dataset().take(4))

    for index in range(2):
        stream = dataclasses.replace(training.stream, own=range(index, index + 1))
        found = list(dataclasses.replace(training, stream=stream).dataset().take(2))
        for step, batch in enumerate(found):
            expected = whole[2 * step + index]
            assert batch.keys() == expected.keys()
            for name, value in batch.items():
                np.testing.assert_array_equal(value, expected[name], name)
    first, second = (whole[i]["token_ids"].numpy() for i in (0, 1))
    assert first.shape != second.shape or (first != second).any()
