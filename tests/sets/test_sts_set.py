"""STS sets: the pairs that are drawn, the annotators' sheets, and what is merged from them."""

import collections
import csv
import json
import math

import numpy as np
import pytest
import reference
import scipy.sparse

from dcse_tf.errors import InputError
from dcse_tf.evaluation.sts import read_sts_set
from dcse_tf.sets import sts_set as job
from dcse_tf.sets.set_options import BuildStsOptions, MergeStsOptions
from dcse_tf.sets.sts_set import read_sheet, write_sheet

FRAMES = {
    "track": ["where is my {}", "when does my {} arrive", "my {}, is it on its way?"],
    "refund": ["I want a refund for the {}", "give me my money back for the {}", "refund my {}"],
    "发票": ["请给我开{}的发票", "{}的发票在哪里", "我要{}的发票"],
}
THINGS = ["parcel", "blue cup", "耳机", "书", 'old "radio"', "lamp; the red one"]
INTENTS = {f.format(t): name for name, frames in FRAMES.items() for f in frames for t in THINGS}


@pytest.mark.parametrize("sparse", [False, True])
def test_neighbours_equal_a_slow_search_whatever_is_held_at_a_time(monkeypatch, sparse):
    monkeypatch.setattr(job, "_ROWS", 3)
    monkeypatch.setattr(job, "_NEIGHBOURS", 2)
    rows = np.random.default_rng(0).normal(size=(10, 4))
    rows[5] = 0  # has no neighbours
    expected = {}
    for i, row in enumerate(rows):
        products = {j: float(row @ other) for j, other in enumerate(rows) if j != i}
        for j in sorted(products, key=lambda j: -products[j])[:2]:
            if products[j] > 0:
                expected[min(i, j), max(i, j)] = products[j]
    found = job.pair_neighbours(scipy.sparse.csr_matrix(rows) if sparse else rows, "word2vec")
    assert [pair[:2] for pair in found] == sorted(expected)
    np.testing.assert_allclose([p[3] for p in found], [expected[p[:2]] for p in found])


def write_sentences(folder, rows):
    path = folder / "sentences.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def build(path, name="out", **changes):
    settings = {"pairs": 24, "annotators": 2, **changes}
    folder = path.parent / name
    told = job.build_sts(BuildStsOptions(input=(str(path),), output_dir=str(folder), **settings))
    lines = (folder / "pairs.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines], told


@pytest.mark.slow
def test_pairs_are_drawn_by_all_strategies_and_over_all_degrees(tmp_path, caplog):
    path = write_sentences(tmp_path, [("text", "intent"), *INTENTS.items()])
    records, told = build(path)
    assert told == "24 pairs: 8 by intent, 8 by unigram, 8 by word2vec"
    assert len({frozenset((r["first"], r["second"])) for r in records}) == 24
    uses = collections.Counter(r[side] for r in records for side in ("first", "second"))
    assert max(uses.values()) <= 3
    for record in records:
        assert {record["first"], record["second"]} <= set(INTENTS)
        if record["strategy"] == "intent":
            assert INTENTS[record["first"]] == INTENTS[record["second"]]
    values = [r["similarity"] for r in records if r["strategy"] == "unigram"]
    assert min(values) < 0.3 < 0.6 < max(values)
    assert build(path, "again")[0] == records
    assert build(path, "other", seed=1)[0] != records
    few, _ = build(path, "few", pairs=500)
    assert len(few) < 500
    assert f"only {len(few)} of 500 pairs could be found" in caplog.text
    unlabelled = write_sentences(tmp_path, [("text",), *((text,) for text in INTENTS)])
    assert "intent" not in build(unlabelled, "unlabelled")[1]
    with pytest.raises(InputError, match="fewer than two sentences"):
        build(write_sentences(tmp_path, [("text",), ("a",), ("A",)]), "one")


# The sheets

PAIRS = [
    (1, "where is my parcel", "我的快递到哪了"),
    (2, "yes, please", 'he said "no", twice; then left'),
    (3, "one\nline\r\nand another", "\u3000 white  space "),
    (4, "", "😀; a,b"),
]
HEADER = list(job.COLUMNS)


def write(path, rows, delimiter=",", encoding="utf-8"):
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def merge(folder, columns, min_annotators=1):
    """Merges a sheet for every string of degrees, "." where there is none."""
    for place, text in enumerate(columns):
        degrees = text.replace(".", "").split(" ")
        rows = [[n, f"first {n}", f"second {n}", d] for n, d in enumerate(degrees, 1)]
        write(folder / f"{place}.csv", [HEADER, *rows])
    sheets = tuple(f"{folder}/{place}.csv" for place in range(len(columns)))
    output = {"output": str(folder / "sts.txt"), "overwrite": True}
    return job.merge_sts(MergeStsOptions(sheets, min_annotators=min_annotators, **output))


def test_a_sheet_has_every_pair_in_its_own_order_and_survives_spreadsheets(tmp_path):
    write_sheet(tmp_path / "sheet.csv", PAIRS, 0)
    assert (tmp_path / "sheet.csv").read_bytes().startswith(b"\xef\xbb\xbfpair,first,second")
    found = read_sheet(tmp_path / "sheet.csv")
    expected = {str(number): (first, second) for number, first, second in PAIRS}
    assert {pair: row[:2] for pair, row in found.items()} == expected
    assert all(math.isnan(row[2]) for row in found.values())
    many = [(number, "a", "b") for number in range(1, 31)]
    orders = []
    for seed in (1, 1, 2):
        write_sheet(tmp_path / "many.csv", many, seed)
        orders.append(list(read_sheet(tmp_path / "many.csv")))
    assert orders[0] == orders[1] != orders[2]
    # Filled, with columns moved and added, by semicolons, and saved without the mark.
    rows = [[d, "hm", *pair[::-1]] for pair, d in zip(PAIRS, ["4", "", "1.0", "5"], strict=True)]
    head = ["degree", "note", "second", "first", "pair"]
    for delimiter, encoding in ((";", "utf-8"), (",", "utf-8-sig")):
        read = read_sheet(write(tmp_path / "f.csv", [head, *rows, [""] * 5], delimiter, encoding))
        np.testing.assert_array_equal([row[2] for row in read.values()], [4, math.nan, 1, 5])
        assert {pair: row[:2] for pair, row in read.items()} == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", ":1: expected the columns pair, first, second, degree"),
        ("pair,first,second,degree\n1,a,b,3\n 1 ,c,d,\n", ":3: pair 1 is there twice"),
        ("pair,first,second,degree\n1,a,b\n", ":2: expected pair, first"),
        ("pair,first,second,degree\n,a,b,3\n", ":2: expected pair, first"),
        *(
            (f"pair,first,second,degree\n1,a,b,3\n2,a,b,{degree}\n", ":3: expected a degree of 1")
            for degree in ("6", "3.5", "five", "nan", "1 2")
        ),
        ('pair,first,second,degree\n1,a,b,3\n2,"a"b,c,3\n', ":3: not CSV"),
        ("pair,first,second,degree\n1,发票,b,3\n".encode("gb18030"), ": not UTF-8"),
    ],
)
def test_a_sheet_that_cannot_be_used_is_named_with_its_line(tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        read_sheet(path)
    assert str(caught.value).startswith(f"{path}{message}")


def test_sheets_are_merged_by_the_median(tmp_path):
    columns = ["1 2 . 5 .", "1 5 . 4 2", "4 3 . . 5"]
    merged = merge(tmp_path, columns)
    # 1 1 4; 2 5 3; none; 5 4; 2 5
    found = read_sts_set(tmp_path / "sts.txt")
    assert found.degrees.tolist() == [1, 3, 4.5, 3.5]
    assert found.first == [f"first {number}" for number in (1, 2, 4, 5)]
    assert found.second == [f"second {number}" for number in (1, 2, 4, 5)]
    assert [line.split()[1:3] for line in merged.splitlines()[:3]] == [
        [n, "degrees,"] for n in "343"
    ]
    assert merged.endswith("\n4 pairs, 1 left out for too few degrees")
    merge(tmp_path, columns, min_annotators=3)
    assert read_sts_set(tmp_path / "sts.txt").first == ["first 1", "first 2"]
    with pytest.raises(InputError, match=r"`min_annotators`=4: 0 pair\(s\)"):
        merge(tmp_path, columns, min_annotators=4)
    other = write(tmp_path / "other.csv", [HEADER, [1, "else", "second 1", 3]])
    sheets = (f"{tmp_path}/[0-9].csv", str(other))
    with pytest.raises(InputError, match=f"{other}: pair 1 has other sentences"):
        job.merge_sts(MergeStsOptions(sheets=sheets, output=str(tmp_path / "new.txt")))


def read_alpha(folder, columns):
    return float(merge(folder, columns).splitlines()[-2].split()[-1])


def test_alpha_of_the_published_example_and_by_hand(tmp_path):
    """Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability": four observers, twelve
    units, values missing; ordinal .815.
    """
    published = ["1 2 3 3 2 1 4 1 2 . . .", "1 2 3 3 2 2 4 1 2 5 . 3"]
    published += [". 3 3 3 2 3 4 2 2 5 1 .", "1 2 3 3 2 4 4 1 2 5 1 ."]
    assert read_alpha(tmp_path, published) == 0.815
    # 1 has 6 values, 2 three, 3 one; ordinal distances are the ranks between the middles: 1 to 2
    # 4.5, 2 to 3 2, 1 to 3 6.5. Seen 2 x 2^2 / 10 = 0.8; by chance
    # 2 (6 x 3 x 4.5^2 + 3 x 1 x 2^2 + 6 x 1 x 6.5^2) / (10 x 9) = 14.
    assert read_alpha(tmp_path, ["1 1 1 2 3", "1 1 1 2 2"]) == round(1 - 0.8 / 14, 3)
    for undefined in (["1 2 3"], ["3 3 3", "3 3 3"], ["1 2 . .", ". . 3 4"]):
        assert math.isnan(read_alpha(tmp_path, undefined))


def test_agreement_is_the_correlation_with_the_median_of_the_others(tmp_path):
    told = merge(tmp_path, ["1 2 3 4 5", "2 1 3 3 5", "1 . 5 . 3"]).splitlines()
    # Medians of the others: of sheets 2 and 3, 1 and 3, 1 and 2.
    expected = [
        reference.spearman([1, 2, 3, 4, 5], [1.5, 1, 4, 3, 4]),
        reference.spearman([2, 1, 3, 3, 5], [1, 2, 4, 4, 4]),
        reference.spearman([1, 5, 3], [1.5, 3, 5]),
    ]
    assert [line.split()[-1] for line in told[:3]] == [f"{value:.3f}" for value in expected]
    assert merge(tmp_path, ["1 2 3"]).splitlines()[0].endswith(" nan")
