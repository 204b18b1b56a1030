import pytest
import tensorflow as tf

from dcse_tf.training.hooks import Profile


def drive(profiler, first, steps, every=4):
    """Goes through steps as the outer loop does; returns the stretches."""
    step, stretches = first, []
    profiler.begin(first, resumed=first > 0)
    while step < steps:
        profiler.at_boundary(step, last=False)
        edges = [profiler.next_boundary(step), (step // every + 1) * every, steps]
        target = min(edge for edge in edges if edge is not None)
        tf.reduce_sum(tf.ones([8, 8])).numpy()
        stretches.append((step, target))
        step = target
    profiler.at_boundary(step, last=True)
    return stretches


def traces(folder):
    return sorted(folder.glob("plugins/profile/*/*.xplane.pb"))


@pytest.mark.parametrize("first", [0, 7])
def test_steps_after_the_tenth_are_traced_and_parted_from_the_others(tmp_path, first):
    stretches = drive(Profile(tmp_path, 3), first, first + 20)
    assert len(traces(tmp_path)) == 1
    edges = {edge for stretch in stretches for edge in stretch}
    assert {first + 10, first + 13} <= edges


def test_a_run_that_ends_within_the_trace_still_writes_it(tmp_path):
    drive(Profile(tmp_path, 50), 0, 14)
    assert len(traces(tmp_path)) == 1


def test_a_run_that_returns_to_a_checkpoint_while_it_is_traced_goes_on(tmp_path):
    profiler = Profile(tmp_path, 3)
    profiler.begin(0, resumed=False)
    # The loss diverged at the step after 11, and the last checkpoint is that of step 8.
    for step in (0, 10, 11, 8, 10, 13):
        profiler.at_boundary(step, last=False)
    assert len(traces(tmp_path)) == 1


def test_without_steps_to_trace_there_is_no_trace_and_no_boundary(tmp_path):
    profiler = Profile(tmp_path, 0)
    assert profiler.next_boundary(0) is None
    drive(profiler, 0, 20)
    assert traces(tmp_path) == []
