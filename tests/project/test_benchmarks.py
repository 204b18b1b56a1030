"""The benchmarks' own parts that can be told without a clock: ratios, inputs, arguments."""

import dataclasses
import json
import pathlib
import sys
from importlib import import_module as load

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "experiments/benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def fixed_case(name, seconds, log, unit="samples", **counts):
    """A case whose rounds take these seconds."""
    measure, left = load("measure"), list(seconds)

    def run():
        log.append(name)
        return measure.Round(left.pop(0), counts, {"peak MB": 7.0})

    return measure.Case(name, unit, run)


def test_cases_take_turns_in_both_orders_and_the_warm_up_is_left_out():
    log = []
    a = fixed_case("a", [9.0, 1.0, 2.0], log, samples=4)
    b = fixed_case("b", [9.0, 2.0, 8.0], log, samples=4)
    rows = load("measure").run_rounds([a, b], rounds=2, warm_up=1)
    assert log == ["a", "b", "b", "a", "a", "b"]
    assert [[r.seconds for r in row.rounds] for row in rows] == [[1.0, 2.0], [2.0, 8.0]]


def make_rows():
    cases = [
        fixed_case("slow", [1.0, 1.0, 4.0], [], samples=8, tokens=80),
        fixed_case("fast", [0.5, 0.25, 1.0], [], samples=8, tokens=40),
    ]
    return load("measure").run_rounds(cases, rounds=3)


def test_a_run_that_is_cut_off_has_told_the_rows_of_its_whole_rounds():
    a, b = (fixed_case(name, [1.0, 2.0], [], samples=4) for name in "ab")
    told = []
    with pytest.raises(IndexError):  # the third round has no time
        load("measure").run_rounds([a, b], rounds=3, tell=told.append)
    assert [[[r.seconds for r in row.rounds] for row in rows] for rows in told] == [
        [[1.0], [1.0]],
        [[1.0, 2.0], [1.0, 2.0]],
    ]


def test_the_ratio_of_two_checkouts_is_one_line():
    """Twice, 4 times and 4 times as fast, by 6, 2 and 3 times less of the processor."""
    rows = make_rows()
    for row, seconds in zip(rows, ([6.0, 2.0, 3.0], [1.0, 1.0, 1.0]), strict=True):
        for each, value in zip(row.rounds, seconds, strict=True):
            each.more["processor s"] = value
    line = load("compare").describe_ratio("train", *rows)
    assert line == "  train    4.000 (2.000 to 4.000); by processor time 3.000"


def test_a_summary_by_hand():
    slow, fast = make_rows()
    # Rates 16, 32 and 8 against 8, 8 and 2 of the same rounds: 2, 4 and 4 times.
    assert (fast.rate, fast.low, fast.high) == (16, 8, 32)
    assert (fast.ratio, fast.ratio_low, fast.ratio_high) == (4, 2, 4)
    assert (slow.rate, slow.ratio) == (8, 1)
    assert fast.more == {"tokens/s": 80, "peak MB": 7}


def test_the_table_has_a_line_for_every_case():
    head, *lines = load("measure").format_rows(make_rows()).splitlines()
    assert "times slow" in head
    assert [line.split()[0] for line in lines] == ["slow", "fast"]
    assert "4.000" in lines[1]


def test_the_json_says_where_the_figures_come_from(tmp_path, monkeypatch):
    measure, path = load("measure"), tmp_path / "new/results.json"
    monkeypatch.setattr(sys, "argv", ["bench.py", "--output=a file"])
    rows = make_rows()
    measure.write_json(path, {"train": rows}, base="slow")
    record = json.loads(path.read_text())
    assert record["command"] == "python bench.py '--output=a file'"
    assert record["results"] == {"train": [dataclasses.asdict(row) for row in rows]}
    assert record["base"] == "slow"
    assert record["cpu"]
    assert set(record.get("instructions", {})) <= {"AVX-512", "VNNI", "bfloat16"}
    assert set(measure.PACKAGES) == set(record["versions"])
    assert record["date"].endswith("+00:00")


PROCESSOR = """processor\t: 0
model name\t: Some CPU
flags\t\t: fpu avx2 avx_vnni avx512f
"""


def test_the_processor_is_described_by_what_linux_says(tmp_path, monkeypatch):
    measure, path = load("measure"), tmp_path / "cpuinfo"
    path.write_text(PROCESSOR)
    monkeypatch.setattr(measure.pathlib, "Path", lambda name: path)
    found = measure.describe_processor()
    assert found["cpu"] == "Some CPU"
    assert found["instructions"] == {"AVX-512": True, "VNNI": True, "bfloat16": False}


def test_nothing_is_written_without_an_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load("measure").write_json(None, [])
    assert not list(tmp_path.iterdir())


GIVEN = {"compare": ["--before=x"], "speed": ["embed"], "similarity": []}


@pytest.mark.parametrize("script", GIVEN)
@pytest.mark.parametrize("rounds", ["0", "-1", "1.5", "many"])
def test_rounds_are_counted(script, rounds, capsys):
    with pytest.raises(SystemExit):
        load(script).parse_arguments([*GIVEN[script], f"--rounds={rounds}"])
    assert f"'{rounds}': expected a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("script", GIVEN)
def test_every_script_has_five_rounds_and_an_output(script):
    args = load(script).parse_arguments(GIVEN[script])
    assert args.rounds >= 5
    assert args.output is None
    args = load(script).parse_arguments([*GIVEN[script], "--output=x.json"])
    assert args.output == pathlib.Path("x.json")


def test_forms_are_chosen_by_name(capsys):
    speed = load("speed")
    assert set(speed.parse_arguments(["train"]).forms) < set(speed.FORMS["train"])
    chosen = speed.parse_arguments(["train", "--forms=dense; dense, bfloat16"]).forms
    assert chosen == ["dense", "dense, bfloat16"]
    with pytest.raises(SystemExit):
        speed.parse_arguments(["train", "--forms=dense;sparse"])
    assert "'sparse'" in capsys.readouterr().err


def test_the_drawn_inputs_have_the_sizes_asked_for(tmp_path):
    inputs = load("jobs").write_inputs(tmp_path, turns=80, sentences=50)
    small, large = (path.read_text().splitlines() for path in inputs.corpora)
    assert (len(small), len(large)) == (8, 80)
    assert large[:8] == small
    assert {line.split("\t")[0] for line in large} == {str(number) for number in range(10)}
    few, many = (path.read_text().splitlines() for path in inputs.sentences)
    assert (len(few), len(set(many))) == (5, 50)
    assert few == many[:5]


def test_kinds_of_index_are_measured_against_exact_search(tmp_path):
    pytest.importorskip("faiss")
    index = load("index")
    index.draw_rows(tmp_path, rows=1000, dim=16)
    rows = np.load(tmp_path / index.ROWS_FILE)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    index.build(tmp_path, "binary")
    found = {kind: index.search(tmp_path, kind) for kind in ("exact", "binary")}
    # Two bytes a row, of which half are candidates, against all.
    assert (tmp_path / index.INDEX_FILE).stat().st_size == pytest.approx(2000, abs=50)
    assert found["exact"]["recall@10"] == 100 > found["binary"]["recall@10"] > 50


def write_job(checkout, name, code):
    """A job of a made-up checkout."""
    path = checkout / f"dcse_tf/cli/{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    for folder in (path.parent, path.parent.parent):
        (folder / "__init__.py").touch()
    path.write_text(code)


# The lines of --input are "embedded" at 0.02 s each, after a start-up of 0.3 s.
SLOW = """
import sys, time
flags = dict(word.split("=", 1) for word in sys.argv[1:])
time.sleep(0.3 + 0.02 * len(open(flags["--input"]).readlines()))
open(flags["--output"], "w").write(flags["--model"])
"""


def test_start_up_is_taken_out_and_the_checkouts_own_code_runs(tmp_path):
    jobs = load("jobs")
    write_job(tmp_path / "code", "embed", SLOW)
    inputs = jobs.write_inputs(tmp_path, turns=20, sentences=100)
    checkout = jobs.Checkout(tmp_path / "code", tmp_path / "work", encoder="e")
    result = checkout.embed(inputs)
    # 90 sentences more at 0.02 s: 1.8 s; the start-up of Python alone differs between the two.
    assert result.counts == {"sentences": 90}
    assert 1.2 < result.seconds < 10
    assert result.more["start-up s"] > 0.5
    assert {"kernel %", "page faults", "peak MB"} < set(result.more)
    assert (tmp_path / "work/1-rows.npy").read_text() == "e"


def test_a_job_that_fails_ends_the_benchmark_with_its_log(tmp_path):
    jobs = load("jobs")
    write_job(tmp_path / "code", "embed", "raise SystemExit('error: out of paper')")
    inputs = jobs.write_inputs(tmp_path, turns=20, sentences=100)
    checkout = jobs.Checkout(tmp_path / "code", tmp_path / "work")
    with pytest.raises(SystemExit, match="out of paper"):
        checkout.embed(inputs)
    with pytest.raises(SystemExit, match="no checkout"):
        jobs.Checkout(tmp_path / "elsewhere", tmp_path / "work")


def test_training_is_read_from_its_summaries_without_the_warm_up(tmp_path):
    import tensorflow as tf

    jobs = load("jobs")
    with tf.summary.create_file_writer(str(tmp_path / "tensorboard")).as_default():
        for step, seconds, rate in ((5, 9.0, 1.0), (10, 9.0, 1.0), (15, 0.5, 8.0), (20, 0.25, 32)):
            tf.summary.scalar("train/step_seconds", seconds, step)
            tf.summary.scalar("train/samples_per_second", rate, step)
            tf.summary.scalar("train/tokens_per_second", 10 * rate, step)
            tf.summary.scalar("eval/samples_per_second", 100.0, step)
    found = jobs.read_training(tmp_path)
    # 5 steps of 0.5 s and 5 of 0.25 s; 8 x 2.5 + 32 x 1.25 samples.
    assert (found.seconds, found.counts) == (3.75, {"samples": 60, "tokens": 600, "steps": 10})


def test_the_work_of_a_step_by_hand(tmp_path):
    """Three layers of 2 x (4 x 10 x 10 + 2 x 10 x 40) = 2,400, of which two are trained."""
    config = {"hidden_size": 10, "num_hidden_layers": 3, "intermediate_size": 40}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load("jobs").count_flop(str(tmp_path)) == 2400 * (3 + 2 * 2)
    assert load("jobs").count_flop("bert-base-uncased") == 0


ECHO = """
import json, sys
settings = json.loads(sys.stdin.readline())
print(json.dumps({"mode": sys.argv[1], **settings}), flush=True)
for line in sys.stdin:
    if line.strip() == "stop":
        sys.exit(3)
    print(json.dumps({"seconds": 2.0, "samples": len(line.strip())}), flush=True)
"""


def test_a_peer_answers_with_its_rounds(tmp_path, monkeypatch):
    peers = load("peers")
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.setattr(peers, "PROGRAM", tmp_path / "echo.py")
    with peers.Peer(pathlib.Path(sys.executable), "echo", {"size": 4}) as peer:
        assert peer.found == {"mode": "echo", "size": 4}
        assert peer.run("four").rate("samples") == 2.0
        with pytest.raises(RuntimeError, match="the peer echo ended with status 3"):
            peer.run("stop")


def test_only_an_environment_is_replaced(tmp_path):
    (tmp_path / "precious").write_text("kept")
    with pytest.raises(SystemExit, match="expected a virtual environment or no folder"):
        load("peers").build_environment(tmp_path)
    assert (tmp_path / "precious").read_text() == "kept"


def test_an_environment_of_these_constraints_is_used_as_it_is(tmp_path):
    peers = load("peers")
    (tmp_path / "constraints.txt").write_bytes(peers.CONSTRAINTS.read_bytes())
    assert peers.build_environment(tmp_path) == tmp_path / "bin/python"
    assert [path.name for path in tmp_path.iterdir()] == ["constraints.txt"]


def test_an_environment_is_installed_without_regard_to_pythonpath(tmp_path, monkeypatch):
    """Else pip takes a package that a PYTHONPATH names for installed."""
    peers, commands = load("peers"), []
    monkeypatch.setattr(peers.subprocess, "run", lambda words, check: commands.append(words))
    python = peers.build_environment(tmp_path, installed=("a", "b"))
    venv, install = commands
    assert venv[1:3] == ["-m", "venv"]
    assert install[:5] == [str(python), "-I", "-m", "pip", "install"]
    assert install[-2:] == ["a", "b"]


def test_a_package_is_the_folder_of_its_checkpoint(tmp_path, monkeypatch):
    (tmp_path / "made_up/model/1_Pooling").mkdir(parents=True)
    for name in ("__init__.py", "model/config.json", "model/1_Pooling/config.json"):
        (tmp_path / "made_up" / name).touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    find_model = load("peers").find_model
    assert find_model("package:made_up") == str(tmp_path / "made_up/model")
    assert find_model("bert-base-chinese") == "bert-base-chinese"
    with pytest.raises(SystemExit, match="package:not_there"):
        find_model("package:not_there")


@pytest.mark.parametrize("program", ["torch_peer.py", "tier_peer.py", "peer_loop.py"])
def test_the_peers_know_nothing_of_the_package(program):
    text = (FOLDER / program).read_text()
    assert "import dcse_tf" not in text
    assert "from dcse_tf" not in text


def test_both_ways_of_the_similarity_are_held_against_each_other():
    similarity = load("similarity")
    form = similarity.make_matching_form("paper")
    pairs = similarity.Pairs(5, form)  # not a multiple of the rows taken at a time
    short, direct = pairs.short(), pairs.direct()
    assert short()[0].shape == direct()[0].shape == (5, 5)
    similarity.check_equal(short, direct)
    values, gradient = direct()
    assert np.isfinite(values.numpy()).all()
    with pytest.raises(SystemExit, match="differ in a gradient"):
        similarity.check_equal(lambda: (values, 1.001 * gradient), direct)


def test_every_way_is_scored_by_set_and_by_its_share_of_the_gain():
    from dcse_tf.evaluation.retrieval import Query, RetrievalSet

    backends = load("backends")
    query = Query(0, positives=np.array([1]), negatives=np.array([2]))
    sets = {name: RetrievalSet(list("abc"), [query], [""] * 3) for name in ("one", "two")}
    # The positive is nearest in the first set, the negative in the second.
    vectors = np.array([[1, 0], [1, 0.1], [0, 1], [1, 0], [0, 1], [1, 0.1]])
    assert backends.score(vectors, sets) == {"one": 100, "two": 50}
    with pytest.raises(ValueError, match="5 embeddings of 6 sentences"):
        backends.score(vectors[:5], sets)

    found = {"run": {"one": 60.0}, "half": {"one": 50.0}, "start": {"one": 40.0}}
    head, *lines = backends.format_scores(found, "run").splitlines()
    assert head.split() == ["MAP", "one", "of", "the", "gain"]
    assert [line.split() for line in lines] == [
        ["run", "60.00", "100%"],
        ["half", "50.00", "50%"],
        ["start", "40.00", "0%"],
    ]
