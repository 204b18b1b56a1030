"""From sentences to sheets, and from filled sheets to a set that evaluate reads."""

import collections
import csv
import json
import pathlib
import subprocess
import sys

import pytest

from dcse_tf.errors import InputError
from dcse_tf.evaluation.sts import read_sts_set
from dcse_tf.sets import sts_set as job
from dcse_tf.sets.options import STRATEGIES, BuildStsOptions, MergeStsOptions

ROOT = pathlib.Path(__file__).parents[2]
FRAMES = {
    "track": ["where is my {}", "when does my {} arrive", "my {}, is it on its way?"],
    "refund": ["I want a refund for the {}", "give me my money back for the {}", "refund my {}"],
    "发票": ["请给我开{}的发票", "{}的发票在哪里", "我要{}的发票"],
}
THINGS = ["parcel", "blue cup", "耳机", "书", 'old "radio"', "lamp; the red one"]
INTENTS = {f.format(t): name for name, frames in FRAMES.items() for f in frames for t in THINGS}


def _write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.fixture
def sentences(tmp_path):
    return _write(tmp_path / "sentences.csv", [("text", "intent"), *INTENTS.items()])


def _config(path, **changes):
    settings = {
        "input": (str(path),),
        "output_dir": str(path.parent / "out"),
        "pairs": 12,
        "annotators": 2,
        **changes,
    }
    if "word2vec" in settings.get("strategies", STRATEGIES) and "word_vectors" not in settings:
        settings.setdefault("vector_size", 8)
    return BuildStsOptions(**settings)


def _build(path, **changes):
    """The records of the pairs that the job wrote, and what it returned."""
    config = _config(path, **changes)
    counts = job.build_sts(config)
    lines = (pathlib.Path(config.output_dir) / "pairs.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in lines.splitlines()], counts


def _read_sheet(path):
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def _fill(path, degrees, delimiter=",", reverse=False):
    """Gives every pair of a sheet a degree, as a spreadsheet would save it."""
    rows = _read_sheet(path)
    for row in rows:
        row["degree"] = degrees[row["pair"]]
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows[::-1] if reverse else rows)


def _contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_pairs_are_sentences_of_the_input_evenly_by_strategy(sentences):
    records, counts = _build(sentences)
    assert counts == {"unigram": 4, "word2vec": 4, "intent": 4}
    assert collections.Counter(record["strategy"] for record in records) == counts
    assert [record["pair"] for record in records] == list(range(1, 13))
    for record in records:
        first, second = record["first"], record["second"]
        assert first != second
        assert {first, second} <= set(INTENTS)
        assert 0 <= record["similarity"] <= 1.000001
        if record["strategy"] == "intent":
            assert INTENTS[first] == INTENTS[second]
    assert len({frozenset((r["first"], r["second"])) for r in records}) == 12


def test_every_sheet_has_all_pairs_in_an_order_of_its_own(sentences, tmp_path):
    records, _ = _build(sentences, annotators=3)
    names = {"pairs.jsonl", "guidelines.txt", "sheet_1.csv", "sheet_2.csv", "sheet_3.csv"}
    assert set(_contents(tmp_path / "out")) == names
    expected = [
        {"pair": str(r["pair"]), "first": r["first"], "second": r["second"], "degree": ""}
        for r in records
    ]
    orders = set()
    for number in (1, 2, 3):
        rows = _read_sheet(tmp_path / "out" / f"sheet_{number}.csv")
        assert sorted(rows, key=lambda row: int(row["pair"])) == expected
        orders.add(tuple(row["pair"] for row in rows))
    assert len(orders) == 3


def test_the_guidelines_explain_every_degree(sentences, tmp_path):
    _build(sentences)
    lines = (tmp_path / "out" / "guidelines.txt").read_text(encoding="utf-8").splitlines()
    assert [line[:3] for line in lines[2:]] == ["5: ", "4: ", "3: ", "2: ", "1: "]


def test_the_same_seed_writes_the_same_files_and_another_seed_others(sentences, tmp_path):
    names = {"a": 3, "b": 3, "c": 4}
    for name, seed in names.items():
        _build(sentences, output_dir=str(tmp_path / name), seed=seed)
    first, same, other = (_contents(tmp_path / name) for name in names)
    assert first == same
    assert first["pairs.jsonl"] != other["pairs.jsonl"]
    assert first["sheet_1.csv"] != other["sheet_1.csv"]


def test_word_vectors_may_come_from_a_file(tmp_path):
    """Two groups of words that no sentence shares; neighbours are within a group alone."""
    groups = {"up": ["one", "two", "three", "four"], "down": ["five", "six", "seven", "eight"]}
    vectors = [f"{w} {i} 0.5" for i, w in enumerate(groups["up"], start=5)]
    vectors += [f"{w} -{i} 0.5" for i, w in enumerate(groups["down"], start=5)]
    (tmp_path / "vectors.txt").write_text("\n".join(vectors) + "\n")
    words = [word for group in groups.values() for word in group]
    rows = [("text", "intent"), *((word, "") for word in [*words, "nine"])]
    records, counts = _build(
        _write(tmp_path / "a.csv", rows),
        strategies=("word2vec",),
        word_vectors=str(tmp_path / "vectors.txt"),
        max_uses=9,
    )
    # Four sentences have six pairs; the word without a vector is in none.
    assert counts == {"word2vec": 12}
    for record in records:
        assert any({record["first"], record["second"]} <= set(group) for group in groups.values())


def test_words_have_their_vectors_whatever_the_case_in_the_file(tmp_path):
    path = _write(tmp_path / "s.csv", [["text"], ["ein Hund"], ["ein Welpe"]])
    (tmp_path / "vectors.txt").write_text("Hund 3.0 4.0 0.0\nWelpe 4.0 3.0 0.0\n")
    (pair,), _ = _build(
        path,
        pairs=2,
        strategies=("word2vec",),
        word_vectors=str(tmp_path / "vectors.txt"),
    )
    assert pair["similarity"] == 0.96  # (3 x 4 + 4 x 3) / (5 x 5)


def test_a_pattern_of_several_files_of_vectors_is_refused(sentences, tmp_path):
    for name in "ab":
        (tmp_path / f"vectors-{name}.txt").write_text("parcel 1.0 2.0 3.0\n")
    with pytest.raises(InputError, match=r"vectors-\*\.txt: matches 2 files; expected one"):
        _build(sentences, word_vectors=str(tmp_path / "vectors-*.txt"))


def test_a_table_needs_no_intents_if_no_strategy_does(tmp_path):
    path = _write(tmp_path / "sentences.csv", [("text",), *((text,) for text in INTENTS)])
    _, counts = _build(path, strategies=("unigram",))
    assert counts == {"unigram": 12}
    for changes in ({}, {"strategies": ("unigram",), "intent_column": "category"}):
        with pytest.raises(InputError, match=r"no column '(intent|category)'"):
            _build(path, overwrite=True, **changes)


def test_a_sentence_is_used_once_whatever_its_case(tmp_path):
    texts = [
        "Where is it",
        "where is IT",
        " where  is it ",
        "WHERE IS IT",
        "it is here",
        "here it is",
    ]
    path = _write(tmp_path / "a.csv", [("text", "intent"), *((text, "") for text in texts)])
    records, _ = _build(path, strategies=("unigram",), max_uses=9)
    assert {frozenset((r["first"], r["second"])) for r in records} == {
        frozenset(("Where is it", "it is here")),
        frozenset(("Where is it", "here it is")),
        frozenset(("it is here", "here it is")),
    }


def test_fewer_sentences_may_be_drawn(sentences):
    records, _ = _build(sentences, sentences=5, pairs=10, max_uses=9)
    assert len({record[side] for record in records for side in ("first", "second")}) <= 5
    assert len(records) >= 2


def test_too_few_pairs_are_reported_and_written(sentences, monkeypatch):
    warnings = []
    monkeypatch.setattr(
        job.logging, "warning", lambda text, *values: warnings.append(text % values)
    )
    records, counts = _build(sentences, pairs=5000, max_uses=1)
    assert sum(counts.values()) == len(records) <= len(INTENTS) // 2
    assert warnings == [f"only {len(records)} of 5000 pairs could be found"]
    monkeypatch.undo()
    assert len(_build(sentences, overwrite=True)[0]) == 12


def test_dialogues_with_intents_are_read_and_several_intents_are_none(tmp_path):
    turns = [
        {"role": "user", "text": "where is my parcel", "intents": ["track"]},
        {"role": "agent", "text": "it left our store", "intents": ["track"]},
        {"role": "user", "text": "when will it arrive", "intents": ["track"]},
        {"role": "agent", "text": "sorry, where?", "intents": ["track", "refund"]},
        {"role": "user", "text": "my parcel is lost"},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"session_id": "1", "turns": turns}) + "\n")
    settings = {"format": "jsonl", "strategies": ("intent",), "max_uses": 9, "overwrite": True}
    records, _ = _build(path, **settings)
    texts = {record[side] for record in records for side in ("first", "second")}
    assert texts == {"where is my parcel", "it left our store", "when will it arrive"}
    (record,), _ = _build(path, **settings, roles=("user",))
    assert {record["first"], record["second"]} == {"where is my parcel", "when will it arrive"}


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ([("one", "a")], {}, "fewer than two different sentences"),
        ([("one", "a"), ("One", "a")], {}, "fewer than two different sentences"),
        ([("one", ""), ("two", "")], {}, "give `strategies`=unigram,word2vec"),
        (
            [("one", "a"), ("two", "a")],
            {"word_vectors": "no.bin"},
            "`word_vectors`=no.bin: no such",
        ),
        ([("one", "a"), ("two", "a")], {"text_column": "query"}, "no column 'query'"),
    ],
)
def test_input_that_cannot_be_used_is_named_and_leaves_nothing(tmp_path, rows, changes, message):
    path = _write(tmp_path / "a.csv", [("text", "intent"), *rows])
    with pytest.raises(InputError) as caught:
        job.build_sts(_config(path, **changes))
    assert message in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.csv"]


def test_sheets_that_may_be_half_filled_are_not_written_over(sentences, tmp_path):
    _build(sentences)
    before = _contents(tmp_path / "out")
    with pytest.raises(FileExistsError, match="`overwrite`"):
        _build(sentences, seed=1)
    assert _contents(tmp_path / "out") == before
    _build(sentences, seed=1, overwrite=True)
    assert _contents(tmp_path / "out")["pairs.jsonl"] != before["pairs.jsonl"]


def test_filled_sheets_become_a_set(sentences, tmp_path):
    records, _ = _build(sentences)
    names = [str(record["pair"]) for record in records]
    _fill(tmp_path / "out/sheet_1.csv", {name: 1 + int(name) % 5 for name in names})
    low = {name: max(1, int(name) % 5) for name in names}
    _fill(tmp_path / "out/sheet_2.csv", low, delimiter=";", reverse=True)
    config = MergeStsOptions(
        sheets=(str(tmp_path / "out/sheet_*.csv"),), output=str(tmp_path / "new/sts.txt")
    )
    merged = job.merge_sts(config)
    read = read_sts_set(tmp_path / "new/sts.txt")
    assert read.first == [record["first"] for record in records]
    assert read.second == [record["second"] for record in records]
    # Pair n: the mean of 1 + n mod 5 and n mod 5, but 1 where n mod 5 is 0.
    expected = [1.5, 2.5, 3.5, 4.5, 1.0] * 2 + [1.5, 2.5]
    assert read.degrees.tolist() == merged.sts_set.degrees.tolist() == expected
    assert merged.rated == [12, 12]
    with pytest.raises(FileExistsError, match="`overwrite`"):
        job.merge_sts(config)
    job.merge_sts(config.replace(overwrite=True, min_annotators=2))


def test_sheets_that_nobody_filled_are_refused(sentences, tmp_path):
    _build(sentences)
    sheets, output = (str(tmp_path / "out/sheet_*.csv"),), str(tmp_path / "sts.txt")
    with pytest.raises(InputError, match=r"^0 pair\(s\) with a degree"):
        job.merge_sts(MergeStsOptions(sheets=sheets, output=output))
    with pytest.raises(InputError, match=r"`sheets`=no_\*.csv: no such file"):
        job.merge_sts(MergeStsOptions(sheets=("no_*.csv",), output=output))
    assert not pathlib.Path(output).exists()


def _run(name, *flags):
    command = [sys.executable, "-m", "dcse_tf.cli", name, *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")


def test_the_commands_say_what_they_did(sentences, tmp_path):
    folder = tmp_path / "out"
    flags = [f"--input={sentences}", f"--output_dir={folder}", "--strategies=unigram,intent"]
    done = _run("build_sts", *flags, "--pairs=10", "--annotators=2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "10 pairs: 5 by unigram, 5 by intent"
    assert lines[1].startswith("2 sheet(s) to fill, guidelines.txt and pairs.jsonl are in ")
    # The next command, as it is printed, on sheets that agree but for the last pair, which one
    # annotator left blank.
    sheets = f"{folder}/sheet_*.csv"
    assert f"dcse merge_sts --sheets='{sheets}' --output=sts.txt" in lines[1]
    degrees = {str(number): 1 + number % 5 for number in range(1, 11)}
    _fill(folder / "sheet_1.csv", degrees)
    _fill(folder / "sheet_2.csv", {**degrees, "10": ""})
    output = tmp_path / "sts.txt"
    done = _run("merge_sts", f"--sheets={sheets}", f"--output={output}", "--min_annotators=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{folder}/sheet_1.csv: 9 degrees, correlation with the others 1.000",
        f"{folder}/sheet_2.csv: 9 degrees, correlation with the others 1.000",
        "Krippendorff's alpha (ordinal): 1.000",
        f"9 pairs, 1 left out for too few degrees; the set is in {output}",
    ]
    assert read_sts_set(output).degrees.tolist() == [2, 3, 4, 5, 1, 2, 3, 4, 5]
