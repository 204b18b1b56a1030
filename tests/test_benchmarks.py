"""The benchmarks' own parts that can be told without a clock: FLOPs, ratios, forms, arguments."""

import importlib
import json
import pathlib
import sys

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parent.parent / "experiments/benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def load(name):
    return importlib.import_module(name)


# Two layers, 2 wide, 8 inside.
CONFIG = {"hidden_size": 2, "intermediate_size": 8, "num_hidden_layers": 2}


def test_flops_are_those_of_the_matrix_products():
    # Rows of 3 and 1 tokens. A layer: 4 tokens x 2 x (4 x 2 x 2 + 2 x 2 x 8) = 384 for projections
    # and feed-forward; scores and mix 2 x (9 + 1) x 2 each = 80 in all. Two layers: 928.
    bert_flops = load("measure").bert_flops
    assert bert_flops(CONFIG, [3, 1]) == 928
    # One trained layer adds twice a layer's forward.
    assert bert_flops(CONFIG, [3, 1], trained_layers=1) == 928 + 2 * 464
    assert bert_flops(CONFIG, []) == 0


def test_a_longer_row_costs_more_than_its_tokens_in_shorter_ones():
    bert_flops = load("measure").bert_flops
    assert bert_flops(CONFIG, [8]) - bert_flops(CONFIG, [4, 4]) == 2 * 4 * (64 - 32) * 2


def test_the_ratio_is_taken_within_a_round():
    # 2, 3 and 1; of the medians it would be 10 / 8.
    assert load("measure").median_ratio([10, 30, 8], [5, 10, 8]) == 2


def fixed_case(measure, name, seconds, log, unit="samples", flops=0.0, **counts):
    """A case whose rounds take these seconds."""
    left = list(seconds)

    def run():
        log.append(name)
        return measure.Round(left.pop(0), counts)

    return measure.Case(name, run, unit, flops)


def test_cases_take_turns_and_the_warm_up_is_left_out():
    measure, log = load("measure"), []
    a = fixed_case(measure, "a", [9.0, 1.0, 2.0], log, samples=4)
    b = fixed_case(measure, "b", [9.0, 2.0, 8.0], log, samples=4)
    results = measure.run_rounds([a, b], rounds=2)
    assert log == ["a", "b"] * 3
    assert [r.seconds for r in results["a"]] == [1.0, 2.0]
    assert [r.seconds for r in results["b"]] == [2.0, 8.0]


def test_two_cases_of_one_name_are_refused():
    measure = load("measure")
    cases = [fixed_case(measure, "a", [], [], samples=1)] * 2
    with pytest.raises(ValueError, match="two cases of one name"):
        measure.run_rounds(cases, rounds=1)


def make_rows(measure):
    cases = [
        fixed_case(measure, "matrix", [1.0, 0.5, 1.0], [], "GFLOP", GFLOP=10),
        fixed_case(measure, "slow", [1.0, 1.0, 4.0], [], samples=8, tokens=80),
        fixed_case(measure, "fast", [0.5, 0.25, 1.0], [], flops=5e8, samples=8, tokens=40),
    ]
    results = measure.run_rounds(cases, rounds=3, warm_up=0)
    return measure.summarize(cases, results, base="slow", matrix="matrix")


def test_a_summary_by_hand():
    matrix, slow, fast = make_rows(load("measure"))
    # Rates 16, 32, 8 against 8, 8, 2: 2, 4 and 4 times.
    assert (fast["rate"], fast["low"], fast["high"], fast["ratio"]) == (16, 8, 32, 4)
    assert (slow["rate"], slow["ratio"], slow["share"]) == (8, 1, None)
    # 0.5 GFLOP a sample: 8, 16 and 4 GFLOP/s of 10, 20 and 10.
    assert fast["share"] == 0.8
    assert fast["rates"] == {"samples": 16, "tokens": 80}
    # A matrix product is no sample: there is no ratio.
    assert (matrix["rate"], matrix["ratio"]) == (10, None)


def test_the_table_has_a_line_for_every_case():
    measure = load("measure")
    head, *lines = measure.format_rows(make_rows(measure), "slow").splitlines()
    assert "times slow" in head
    assert [line.split()[0] for line in lines] == ["matrix", "slow", "fast"]
    assert "80%" in lines[2]
    assert "4.00" in lines[2]


def test_the_json_says_where_the_figures_come_from(tmp_path, monkeypatch):
    measure, path = load("measure"), tmp_path / "new/results.json"
    monkeypatch.setattr(sys, "argv", ["bench.py", "--output=a file"])
    rows = make_rows(measure)
    measure.write_json(path, rows, base="slow")
    record = json.loads(path.read_text())
    assert record["command"] == "python bench.py '--output=a file'"
    assert record["results"] == rows
    assert [r["seconds"] for r in record["results"][2]["rounds"]] == [0.5, 0.25, 1.0]
    assert record["base"] == "slow"
    assert record["cpu"]
    assert set(measure.PACKAGES) == set(record["versions"])
    assert record["date"].endswith("+00:00")


def test_nothing_is_written_without_an_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load("measure").write_json(None, [])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", ["train_step", "similarity", "serving", "growth"])
@pytest.mark.parametrize("rounds", ["0", "-1", "1.5", "many"])
def test_rounds_are_counted(script, rounds, capsys):
    with pytest.raises(SystemExit):
        load(script).parse_arguments([f"--rounds={rounds}"])
    assert f"'{rounds}': expected a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["train_step", "similarity", "serving", "growth", "embedding"])
def test_every_script_has_five_rounds_and_an_output(script):
    args = load(script).parse_arguments([])
    assert args.rounds >= 5
    assert args.output is None
    assert load(script).parse_arguments(["--output=x.json"]).output == pathlib.Path("x.json")


def test_training_cases_are_chosen_by_name(capsys):
    train_step = load("train_step")
    assert set(train_step.parse_arguments([]).cases) < set(train_step.CASES)
    assert train_step.parse_arguments(["--cases=plain; unique"]).cases == ["plain", "unique"]
    with pytest.raises(SystemExit):
        train_step.parse_arguments(["--cases=plain;sparse"])
    assert "no case 'sparse'" in capsys.readouterr().err


def test_every_training_case_is_a_set_of_settings_that_train_takes():
    from train_options import make_options

    for settings in load("train_step").CASES.values():
        make_options(data_dir="d", encoder="e", run_dir="r", **settings)


A, B, C = [1, 7, 2], [1, 8, 9, 2], [1, 2]  # 1 is [CLS]


@pytest.mark.parametrize(
    "batch",
    [
        {"token_ids": [[*A, 0], B, [*C, 0, 0], [*A, 0]]},
        {"token_ids": [[*B, *A], [*C, 0, 0, 0, 0, 0]]},
        {"token_ids_0": [C, C], "token_ids_1": [B, [*A, 0]], "places": [[1, 1]]},
    ],
    ids=["padded", "packed", "in groups"],
)
def test_distinct_utterances_are_counted_in_any_layout(batch):
    arrays = {name: np.array(value, np.int32) for name, value in batch.items()}
    assert sorted(load("train_step").distinct_lengths(arrays, 1)) == [2, 3, 4]


def test_the_peers_batches_have_every_use_in_its_place(tmp_path):
    table = np.array([[1, 2, 0], [1, 7, 2], [1, 8, 2]], np.int32)
    batch = {
        "token_ids": table,
        "context_index": np.array([[0, 1], [2, 2]], np.int32),
        "candidate_index": np.array([[2, 0], [1, 0]], np.int32),
        "turn_mask": np.array([[True, True], [True, False]]),
        "candidate_mask": np.array([[True, True], [True, False]]),
    }
    load("train_step").write_plain_batches(tmp_path / "b.npz", [batch, batch])
    arrays = dict(np.load(tmp_path / "b.npz"))
    assert arrays["context_ids"].shape == arrays["candidate_ids"].shape == (2, 2, 2, 3)
    np.testing.assert_array_equal(arrays["context_ids"][0, 0], table[[0, 1]])
    np.testing.assert_array_equal(arrays["candidate_ids"][1, 1], table[[1, 0]])
    np.testing.assert_array_equal(arrays["turn_mask"][1], batch["turn_mask"])
    np.testing.assert_array_equal(arrays["candidate_mask"][0], batch["candidate_mask"])


def write_test_split(folder):
    lines = [
        {
            "session_id": str(s),
            "turns": [{"role": "ab"[t % 2], "text": f"{s} {t}"} for t in range(5)],
        }
        for s in range(2)
    ]
    (folder / "test.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n")


def test_pairs_are_the_turns_before_a_response_and_the_response(tmp_path):
    write_test_split(tmp_path)
    dialogues = load("dialogues")
    pairs = dialogues.make_pairs(tmp_path, turns=3, count=8)
    assert len({tuple(pair) for pair in pairs}) == 8
    assert ["1 0", "1 1"] in pairs
    assert ["0 1 0 2 0 3", "0 4"] in pairs
    assert dialogues.make_pairs(tmp_path, turns=3, count=4) == pairs[:4]
    assert sorted(dialogues.read_sentences(tmp_path, 10))[:2] == ["0 0", "0 1"]
    with pytest.raises(SystemExit, match="8 items, 9 are needed"):
        dialogues.make_pairs(tmp_path, turns=3, count=9)


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
    process = load("peer_process")
    (tmp_path / "peer.py").write_text(ECHO)
    monkeypatch.setattr(process, "FOLDER", tmp_path)
    with process.Peer(pathlib.Path(sys.executable), "echo", {"size": 4}) as peer:
        assert peer.found == {"mode": "echo", "size": 4}
        case = peer.case("name", "four", "samples", 2.0)
        assert (case.name, case.flops, case.run().rate("samples")) == ("name", 2.0, 2.0)
        with pytest.raises(RuntimeError, match="the peer echo ended with status 3"):
            peer.run("stop")


def test_only_an_environment_is_replaced(tmp_path):
    (tmp_path / "precious").write_text("kept")
    with pytest.raises(SystemExit, match="expected a virtual environment or no folder"):
        load("peer_process").build_environment(tmp_path)
    assert (tmp_path / "precious").read_text() == "kept"


def test_an_environment_of_these_constraints_is_used_as_it_is(tmp_path):
    process = load("peer_process")
    (tmp_path / "peers-constraints.txt").write_bytes(
        (process.FOLDER / "constraints.txt").read_bytes()
    )
    assert process.build_environment(tmp_path) == tmp_path / "bin/python"
    assert [path.name for path in tmp_path.iterdir()] == ["peers-constraints.txt"]


def test_an_environment_is_installed_without_regard_to_pythonpath(tmp_path, monkeypatch):
    """Else pip takes a package that a PYTHONPATH names for installed."""
    process, commands = load("peer_process"), []
    monkeypatch.setattr(process.subprocess, "run", lambda words, check: commands.append(words))
    python = process.build_environment(tmp_path)
    venv, install = commands
    assert venv[1:3] == ["-m", "venv"]
    assert install[:5] == [str(python), "-I", "-m", "pip", "install"]
    assert install[-len(process.INSTALLED) :] == list(process.INSTALLED)


def test_the_peers_know_nothing_of_the_package():
    for name in ("peer.py", "served.py"):
        text = (FOLDER / "peers" / name).read_text()
        assert "import dcse_tf" not in text
        assert "from dcse_tf" not in text


def test_both_ways_of_the_similarity_are_held_against_each_other():
    similarity = load("similarity")
    pairs = similarity.Pairs(5)  # not a multiple of the rows taken at a time
    gram, direct = pairs.gram(), pairs.direct()
    assert gram()[0].shape == direct()[0].shape == (5, 5)
    similarity.check_equal(gram, direct)
    values, gradient = direct()
    with pytest.raises(SystemExit, match="differ in a gradient"):
        similarity.check_equal(lambda: (values, 1.001 * gradient), direct)


def test_growth_changes_one_size_alone():
    growth = load("growth")
    for field, base in growth.ROWS.values():
        assert field in {"vocabulary", "length", "batch", "turns", "negatives"}
        # A row's batch has the negatives that it asks for.
        last = getattr(base, field) << growth.DOUBLINGS if field == "negatives" else base.negatives
        assert last < base.batch


def test_a_drawn_batch_has_the_sizes_asked_for():
    growth = load("growth")
    batch = growth.draw_batch(growth.Sizes(vocabulary=50, length=5, batch=4, turns=3, negatives=2))
    assert batch["token_ids"].shape == (16, 5)
    assert batch["context_index"].shape == (4, 3)
    assert batch["candidate_index"].shape == (4, 3)
    assert bool(batch["candidate_mask"].numpy().all())
    assert int(batch["padding_mask"].numpy().sum()) == 80
    assert batch["token_ids"].numpy().max() < 50


def test_factors_are_of_neighbouring_sizes():
    measure, growth = load("measure"), load("growth")
    cases = [
        fixed_case(measure, str(size), [9.0, *seconds], [], "steps", steps=2)
        for size, seconds in {1: (1.0, 2.0, 1.0), 2: (2.0, 4.0, 9.0), 4: (6.0, 6.0, 9.0)}.items()
    ]
    result = growth.measure_growth([1, 2, 4], cases, rounds=3)
    # 2, 2, 9 and 3, 1.5, 1.
    assert result["factors"] == [2.0, 1.5]
    assert result["seconds"][0] == [0.5, 1.0, 0.5]
    sizes, factors = growth.format_growth("batch", result)
    assert sizes == ["batch", "1: 0.5000", "2: 2.0000", "4: 3.0000"]
    assert factors == ["  times", "", "2.00", "1.50"]
