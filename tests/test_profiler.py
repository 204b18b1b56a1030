import pytest
import tensorflow as tf

from dcse_tf.training.summaries import StepProfiler


def drive(profiler, first, steps, every=4):
    """Goes through steps as the outer loop does; returns the stretches."""
    step, stretches = first, []
    while step < steps:
        profiler.before(step)
        target = min([steps, *profiler.boundaries(step), (step // every + 1) * every])
        tf.reduce_sum(tf.ones([8, 8])).numpy()
        stretches.append((step, target))
        step = target
    profiler.stop()
    return stretches


def traces(folder):
    return sorted(folder.glob("plugins/profile/*/*.xplane.pb"))


@pytest.mark.parametrize("first", [0, 7])
def test_steps_after_the_tenth_are_traced_and_parted_from_the_others(tmp_path, first):
    stretches = drive(StepProfiler(tmp_path, first, 3), first, first + 20)
    assert len(traces(tmp_path)) == 1
    edges = {edge for stretch in stretches for edge in stretch}
    assert {first + 10, first + 13} <= edges


def test_a_run_that_ends_within_the_trace_still_writes_it(tmp_path):
    drive(StepProfiler(tmp_path, 0, 50), 0, 14)
    assert len(traces(tmp_path)) == 1


def test_without_steps_to_trace_there_is_no_trace_and_no_boundary(tmp_path):
    profiler = StepProfiler(tmp_path, 0, 0)
    assert profiler.boundaries(0) == []
    drive(profiler, 0, 20)
    assert traces(tmp_path) == []
