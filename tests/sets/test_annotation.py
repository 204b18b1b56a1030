import csv
import io
import itertools
import math

import numpy as np
import pytest
import reference

from dcse_tf.errors import InputError
from dcse_tf.evaluation.sts import StsSet, read_sts_set, write_sts_set
from dcse_tf.sets.sts_set import merge_sheets, read_sheet, write_sheet

PAIRS = [
    (1, "where is my parcel", "我的快递到哪了"),
    (2, "yes, please", 'he said "no", twice; then left'),
    (3, "one\nline\r\nand another", "\u3000 white  space "),
    (4, "", "😀; a,b"),
]
HEADER = ["pair", "first", "second", "degree"]
# Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability": four observers, twelve units,
# values missing. Alpha is .743 nominal, .815 ordinal, .849 interval, .797 ratio.
PUBLISHED = ["1 2 3 3 2 1 4 1 2 . . .", "1 2 3 3 2 2 4 1 2 5 . 3"]
PUBLISHED += [". 3 3 3 2 3 4 2 2 5 1 .", "1 2 3 3 2 4 4 1 2 5 1 ."]


def _write(path, rows, delimiter=",", encoding="utf-8", end="\r\n"):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator=end).writerows(rows)
    path.write_bytes(text.getvalue().encode(encoding))
    return path


def _rows(degrees):
    return [[number, f"first {number}", f"second {number}", d] for number, d in degrees.items()]


def _sheet(path, degrees, **style):
    return _write(path, [HEADER, *_rows(degrees)], **style)


def _sheets(folder, columns):
    """A sheet for every string of degrees, "." where there is none."""
    return [
        _sheet(folder / f"{place}.csv", dict(enumerate(text.replace(".", "").split(" "), 1)))
        for place, text in enumerate(columns)
    ]


def _alpha(folder, columns):
    return merge_sheets(_sheets(folder, columns), 1).alpha


def test_a_sheet_has_every_pair_once_with_an_empty_degree(tmp_path):
    write_sheet(tmp_path / "sheet.csv", PAIRS, 0)
    content = (tmp_path / "sheet.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbfpair,first,second,degree\r\n")
    with (tmp_path / "sheet.csv").open(encoding="utf-8-sig", newline="") as file:
        _, *rows = csv.reader(file)
    assert sorted(rows) == [[str(number), first, second, ""] for number, first, second in PAIRS]
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.csv"]


def test_every_sheet_has_an_order_of_its_own_that_its_seed_gives(tmp_path):
    pairs = [(number, "a", "b") for number in range(1, 31)]
    orders = []
    for name, seed in [("a", 1), ("b", 1), ("c", 2), ("d", 3)]:
        write_sheet(tmp_path / name, pairs, seed)
        orders.append(tuple(read_sheet(tmp_path / name)))
    assert orders[0] == orders[1]
    assert len({*orders, tuple(str(number) for number, *_ in pairs)}) == 4


def test_sentences_survive_commas_quotes_and_new_lines(tmp_path):
    write_sheet(tmp_path / "sheet.csv", PAIRS, 0)
    rows = read_sheet(tmp_path / "sheet.csv")
    assert {pair: texts[:2] for pair, texts in rows.items()} == {
        str(number): (first, second) for number, first, second in PAIRS
    }
    assert all(math.isnan(degree) for *_, degree in rows.values())


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_spreadsheets_make_of_a_sheet_is_read(tmp_path, delimiter, encoding, end):
    rows = [HEADER, *([*pair, degree] for pair, degree in zip(PAIRS, ["4", "", "1", "5"]))]
    found = read_sheet(_write(tmp_path / "a.csv", rows, delimiter, encoding, end))
    assert list(found) == ["1", "2", "3", "4"]
    assert [row[:2] for row in found.values()] == [pair[1:] for pair in PAIRS]
    np.testing.assert_array_equal([row[2] for row in found.values()], [4, math.nan, 1, 5])


def test_columns_may_be_moved_and_added(tmp_path):
    rows = [["degree", "note", "second", "pair", "first"], [3, "hm; " * 9, "b", 7, "a"]]
    assert read_sheet(_write(tmp_path / "a.csv", rows)) == {"7": ("a", "b", 3)}


@pytest.mark.parametrize(
    ("text", "degree"), [("4", 4), ("4.0", 4), (" 4 ", 4), ("４", 4), ("1", 1), ("5.00", 5)]
)
def test_a_degree_may_be_written_in_several_ways(tmp_path, text, degree):
    assert read_sheet(_sheet(tmp_path / "a.csv", {1: text}))["1"][2] == degree


@pytest.mark.parametrize("text", ["", " ", "\u3000", "\t"])
def test_a_blank_degree_is_none(tmp_path, text):
    assert math.isnan(read_sheet(_sheet(tmp_path / "a.csv", {1: text}))["1"][2])


@pytest.mark.parametrize(
    "text", ["6", "0", "-1", "3.5", "4,5", "five", "nan", "inf", "1 2", "?", "54"]
)
def test_a_degree_that_is_not_1_to_5_is_named_with_its_line(tmp_path, text):
    path = _sheet(tmp_path / "a.csv", {1: "3", 2: text, 3: "x"})
    with pytest.raises(InputError) as caught:
        read_sheet(path)
    message = f"{path}:3: expected a degree of 1, 2, 3, 4 or 5, found {text!r}"
    assert str(caught.value) == message


@pytest.mark.parametrize("column", HEADER)
def test_a_missing_column_is_named(tmp_path, column):
    path = _write(tmp_path / "a.csv", [[name for name in HEADER if name != column], [1, "a", "b"]])
    with pytest.raises(InputError, match=f"{path}:1: expected the columns .*{column}"):
        read_sheet(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", ":1: expected the columns pair, first, second, degree"),
        ("1,a,b,3\r\n", ":1: expected the columns"),
        ("pair,first,second,degree\r\n1,a,b,3\r\n1,a,b,3\r\n", ":3: pair 1 is there twice"),
        ("pair,first,second,degree\r\n1,a,b,3\r\n 1 ,c,d,\r\n", ":3: pair 1 is there twice"),
        ("pair,first,second,degree\r\n1,a,b\r\n", ":2: expected pair, first"),
        ("pair,first,second,degree\r\n,a,b,3\r\n", ":2: expected pair, first"),
        ('pair,first,second,degree\r\n1,a,b,3\r\n2,"a"b,c,3\r\n', ":3: not CSV"),
        ("pair,first,second,degree\r\n1,发票,b,3\r\n".encode("gb18030"), ": not UTF-8"),
        ("pair,first,second,degree\r\n".encode("utf-16"), ": not UTF-8"),
    ],
)
def test_a_sheet_that_cannot_be_used_is_named(tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        read_sheet(path)
    assert str(caught.value).startswith(f"{path}{message}")


def test_a_sheet_that_is_gone_is_named(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}/nowhere.csv: cannot be read"):
        read_sheet(tmp_path / "nowhere.csv")


def test_sheets_are_merged_by_the_median(tmp_path):
    paths = [
        _sheet(tmp_path / "a.csv", {1: 1, 2: 2, 3: "", 4: 5, 5: "", 10: 3}, encoding="utf-8-sig"),
        _sheet(tmp_path / "b.csv", {10: 4, 4: "4.0", 1: 1, 3: "", 2: 5, 5: 2}, delimiter=";"),
        _sheet(tmp_path / "c.csv", {5: 5, 1: 4, 2: 3, 3: "", 4: ""}),  # pair 10 is not there
    ]
    merged = merge_sheets(paths, 1)
    assert merged.sts_set.first == [f"first {number}" for number in (1, 2, 4, 5, 10)]
    assert merged.sts_set.second == [f"second {number}" for number in (1, 2, 4, 5, 10)]
    # 1 1 4; 2 5 3; 5 4; 2 5; 3 4
    assert merged.sts_set.degrees.tolist() == [1, 3, 4.5, 3.5, 3.5]
    assert merged.left_out == 1
    assert merged.rated == [4, 5, 3]
    assert merged.sheets == [str(path) for path in paths]


@pytest.mark.parametrize(("least", "kept"), [(1, [1, 2, 3, 4]), (2, [1, 2, 4]), (3, [1, 4])])
def test_pairs_with_too_few_degrees_are_left_out(tmp_path, least, kept):
    merged = merge_sheets(_sheets(tmp_path, ["1 2 3 4", "1 . . 4", "2 3 . 3"]), least)
    assert merged.sts_set.first == [f"first {number}" for number in kept]
    assert merged.left_out == 4 - len(kept)


@pytest.mark.parametrize(
    ("columns", "least", "pairs"), [(["1 2", "1 2"], 3, 0), (["1 .", "2 ."], 1, 1)]
)
def test_fewer_than_two_pairs_are_refused(tmp_path, columns, least, pairs):
    problem = rf"^{pairs} pair\(s\) with a degree in at least {least} of the 2 sheet\(s\)"
    with pytest.raises(InputError, match=problem):
        merge_sheets(_sheets(tmp_path, columns), least)


@pytest.mark.parametrize("place", [1, 2])
def test_other_sentences_for_one_pair_are_refused(tmp_path, place):
    first = _sheet(tmp_path / "a.csv", {1: 1, 2: 2})
    rows = _rows({1: 1, 2: 2})
    rows[1][place] = "else"
    second = _write(tmp_path / "b.csv", [HEADER, *rows])
    with pytest.raises(InputError, match=f"{second}: pair 2 has other sentences"):
        merge_sheets([first, second], 1)


def test_alpha_of_the_published_example(tmp_path):
    assert _alpha(tmp_path, PUBLISHED) == pytest.approx(0.815, abs=5e-4)


def test_alpha_by_hand(tmp_path):
    """1 has 6 values, 2 three, 3 one; ordinal distances are the ranks between the middles.

    1 to 2: (6 + 3) / 2 = 4.5; 2 to 3: (3 + 1) / 2 = 2; 1 to 3: 6 / 2 + 3 + 1 / 2 = 6.5.
    Seen: one pair of 2 and 3, both ways, of 10 values: 2 * 2^2 / 10 = 0.8. By chance:
    2 * (6 * 3 * 4.5^2 + 3 * 1 * 2^2 + 6 * 1 * 6.5^2) / (10 * 9) = 1260 / 90 = 14.
    """
    assert _alpha(tmp_path, ["1 1 1 2 3", "1 1 1 2 2"]) == pytest.approx(1 - 0.8 / 14)


@pytest.mark.parametrize("order", itertools.islice(itertools.permutations(range(4)), 1, 24, 5))
def test_the_order_of_sheets_and_pairs_does_not_matter_to_alpha(tmp_path, order):
    columns = [" ".join(PUBLISHED[place].split()[::-1]) for place in order]
    assert _alpha(tmp_path, columns) == pytest.approx(0.815, abs=5e-4)


def test_alpha_is_1_when_all_agree_and_below_0_when_they_contradict(tmp_path):
    assert _alpha(tmp_path, ["1 2 3 4 5", "1 2 3 4 5", "1 2 . 4 ."]) == pytest.approx(1)
    assert _alpha(tmp_path, ["1 2 3 4 5", "5 4 3 2 1"]) < 0


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    "columns",
    [
        ["1 2 3"],
        ["3 3 3", "3 3 3"],
        ["1 2 . .", ". . 3 4"],  # no pair has two degrees
        ["3 3 5", "3 3 ."],  # those that have two are all equal
    ],
)
def test_alpha_is_nan_where_it_is_not_defined(tmp_path, columns):
    assert math.isnan(_alpha(tmp_path, columns))


def test_agreement_is_the_correlation_with_the_median_of_the_others(tmp_path):
    columns = ["1 2 3 4 5", "2 1 3 3 5", "1 . 5 . 3"]
    merged = merge_sheets(_sheets(tmp_path, columns), 1)
    # Medians of the others: of sheets 2 and 3, 1 and 3, 1 and 2.
    expected = [
        reference.spearman([1, 2, 3, 4, 5], [1.5, 1, 4, 3, 4]),
        reference.spearman([2, 1, 3, 3, 5], [1, 2, 4, 4, 4]),
        reference.spearman([1, 5, 3], [1.5, 3, 5]),
    ]
    assert merged.agreement == pytest.approx(expected)


def test_an_annotator_without_company_has_no_agreement(tmp_path):
    assert math.isnan(merge_sheets(_sheets(tmp_path, ["1 2 3"]), 1).agreement[0])
    merged = merge_sheets(_sheets(tmp_path, ["1 2 3 4", "1 2 . .", ". . . 4"]), 1)
    assert [math.isnan(value) for value in merged.agreement] == [False, False, True]


def test_the_merged_set_is_read_back_with_its_half_degrees(tmp_path):
    sheets = _sheets(tmp_path, ["1 2 5 4", "2 2 5 1", "4 2 . 1", "5 3 . 1"])
    merged = merge_sheets(sheets, 1)
    write_sts_set(tmp_path / "new" / "sts.txt", merged.sts_set)
    read = read_sts_set(tmp_path / "new" / "sts.txt")
    # 1 2 4 5: 3; 2 2 2 3: 2; 5 5: 5; 1 1 1 4: 1
    assert read.degrees.tolist() == [3, 2, 5, 1]
    assert (read.first, read.second) == (merged.sts_set.first, merged.sts_set.second)
    merged = merge_sheets(sheets[:2], 1)
    write_sts_set(tmp_path / "half.txt", merged.sts_set)
    assert read_sts_set(tmp_path / "half.txt").degrees.tolist() == [1.5, 2, 5, 2.5]
    assert (tmp_path / "half.txt").read_text().startswith("1.5\tfirst 1\tsecond 1\n2\tfirst 2\t")


def test_white_space_in_sentences_does_not_break_the_set(tmp_path):
    texts = ["one\ttwo", "one\r\ntwo", " one\u3000 two\x85", "one\u2028two"]
    sts_set = StsSet(np.array([1.0, 2, 3, 4.5]), texts, texts[::-1])
    write_sts_set(tmp_path / "sts.txt", sts_set)
    read = read_sts_set(tmp_path / "sts.txt")
    assert read.first == read.second == ["one two"] * 4
    assert read.degrees.tolist() == [1, 2, 3, 4.5]


def test_a_set_that_is_there_is_replaced_only_if_told(tmp_path):
    path = tmp_path / "sts.txt"
    old, new = (StsSet(np.array(values), ["a", "b"], ["c", "d"]) for values in ([1, 2], [3, 4]))
    write_sts_set(path, old)
    with pytest.raises(FileExistsError, match=str(path)):
        write_sts_set(path, new)
    assert read_sts_set(path).degrees.tolist() == [1, 2]
    write_sts_set(path, new, overwrite=True)
    assert read_sts_set(path).degrees.tolist() == [3, 4]
    assert [entry.name for entry in tmp_path.iterdir()] == ["sts.txt"]
