"""A run that is killed again and again ends as one that is left alone."""

import kill_harness


def test_a_killed_run_loses_no_saved_step_and_ends_bit_for_bit_the_same(tmp_path):
    data_dir = kill_harness.prepare(tmp_path)
    kill_harness.run_alone(data_dir, tmp_path / "alone", steps=60)
    report = kill_harness.run_killed(data_dir, tmp_path / "alone", tmp_path / "run", 3, seed=1)
    assert report.kills == 3
    assert report.most_lost == 0
    assert report.equal
