import collections
import dataclasses
import html.parser
import re
import xml.etree.ElementTree as ElementTree

import pytest

from dcse_tf.inspecting.inspect import DataReport, format_text, render_html
from dcse_tf.inspecting.statistics import Leak, LeakReport, Lengths, Statistics


def lengths(*values):
    return Lengths.of(collections.Counter(values))


# 4 turns of 3, 3, 5, 11 tokens in 2 sessions.
STATISTICS = Statistics(
    sessions=2,
    turns=4,
    speakers={"user": 3, "agent": 1},
    intents={"refund": 2, "退货": 1},
    labelled_turns=2,
    turns_a_session=lengths(1, 3),
    words_an_utterance=lengths(1, 1, 3, 9),
    characters_an_utterance=lengths(2, 4, 10, 1234),
    tokens_an_utterance=lengths(3, 3, 5, 11),
    unknown_tokens=2,
    repeated_utterances=0.5,
    repeated_sessions=0.0,
    frequent_utterances=[("好的", 2)],
)
LEAKS = LeakReport(
    source="/data/ecd/dev/select.txt",
    sentences=8,
    exact=2,
    near=1,
    long_sentences=4,
    long_exact=1,
    long_near=1,
    leaks=[
        Leak("when will it come", "When will it come?", "s1", 1.0),
        Leak("我想退货谢谢", "我想退货谢谢亲", "s2", 0.8),
        Leak("好的", "好的。", "s2", 1.0),
    ],
)
REPORT = DataReport(
    inputs=["jsonl: a.jsonl"],
    dropped={"short_sessions": 1, "empty_utterances": 0, "bad_lines": 1234},
    max_sequence_length=5,
    near_duplicate=0.8,
    statistics=STATISTICS,
    leaks=[LEAKS],
)


def change(leaks=REPORT.leaks, max_sequence_length=5, **statistics):
    return dataclasses.replace(
        REPORT,
        leaks=leaks,
        max_sequence_length=max_sequence_length,
        statistics=dataclasses.replace(STATISTICS, **statistics),
    )


WITHOUT_TOKENS = change(max_sequence_length=None, tokens_an_utterance=None, unknown_tokens=0)


class Page(html.parser.HTMLParser):
    """What a browser sees: tags with attributes, headings, tables as rows of cells.

    The rows of bars with names are apart, as (name, width of the bar in percent, count).
    """

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.headings, self.rows = [], [], [], []
        self.tables, self.bars = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.texts.append("")
        if tag == "table":
            self.tables.append([] if attrs else self.rows)
        if tag == "tr":
            self.tables[-1].append([])
        if tag == "div":
            self.texts[-1] = re.fullmatch(r"width:([0-9.]+)%", dict(attrs)["style"])[1]

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.tables[-1][-1].append(self.texts[-1])
        if tag == "table" and self.tables[-1] is not self.rows:
            self.bars.append(self.tables[-1])
        if tag in ("h1", "h2"):
            self.headings.append(self.texts[-1])

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data

    def names(self):
        return [tag for tag, _ in self.tags]


def drawings(text):
    return re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)


def elements(drawing, tag):
    return list(ElementTree.fromstring(drawing).iter(f"{{http://www.w3.org/2000/svg}}{tag}"))


def test_the_text_has_every_figure():
    lines = format_text(REPORT).splitlines()
    cells = [re.split(r"\s{2,}", line) for line in lines]
    # 22 tokens, 2 of them unknown: 9.09%. Longer than 5: one of four. Quantiles of 3, 3, 5, 11:
    # the second, and the fourth.
    for row in [
        ["sessions", "2"],
        ["turns", "4"],
        ["left out: short_sessions", "1"],
        ["left out: bad_lines", "1,234"],
        ["turns a session", "mean 2.00, 50% <= 1, 95% <= 3, 99% <= 3, longest 3"],
        ["words", "14"],
        ["words an utterance", "mean 3.50, 50% <= 1, 95% <= 9, 99% <= 9, longest 9"],
        [
            "characters an utterance",
            "mean 312.50, 50% <= 4, 95% <= 1234, 99% <= 1234, longest 1234",
        ],
        ["tokens", "22"],
        ["tokens an utterance", "mean 5.50, 50% <= 3, 95% <= 11, 99% <= 11, longest 11"],
        ["unknown tokens", "9.09%"],
        ["utterances cut at 5 tokens", "25.00%"],
        ["speaker user", "3 turns"],
        ["speaker agent", "1 turns"],
        ["intents", "2"],
        ["turns with an intent", "2"],
        ["turns whose text another turn has", "50.00%"],
        ["sessions whose texts another session has", "0.00%"],
        ["5", "25.00%"],
        ["16", "0.00%"],
        ["好的", "2"],
        ["refund", "2"],
        ["退货", "1"],
        # 2 of 8, 1 of 8; 1 of 4 each.
        ["ecd/dev/select.txt", "8", "2 (25.00%)", "1 (12.50%)", "4", "1 (25.00%)", "1 (25.00%)"],
    ]:
        assert row in cells
    assert "leaks (near: 0.8 of the trigrams)" in format_text(REPORT)


@pytest.mark.parametrize(("length", "share"), [(3, "50.00%"), (10, "25.00%"), (11, "0.00%")])
def test_the_limit_asked_about_is_in_the_table_of_limits(length, share):
    report = change(max_sequence_length=length)
    rows = [line.split() for line in format_text(report).splitlines()]
    assert [str(length), share] in rows
    limits = [int(row[0]) for row in rows if len(row) == 2 and row[0].isdigit()]
    assert limits == sorted({16, 25, 32, 50, 64, 100, 128, 256, length})


def test_what_was_not_asked_for_is_not_there():
    report = dataclasses.replace(WITHOUT_TOKENS, leaks=[])
    report = dataclasses.replace(
        report, statistics=dataclasses.replace(report.statistics, intents={}, labelled_turns=0)
    )
    for text in (format_text(report), re.sub(r"<svg.*?</svg>", "", render_html(report))):
        assert "leak" not in text.lower()
        assert "token" not in text.lower()
        assert "refund" not in text
    assert Page(render_html(report)).headings == [
        "Data report",
        "Turns a session",
        "Words an utterance",
        "Speakers",
    ]


def test_the_page_has_the_rows_of_the_text_and_examples_of_leaks():
    page = Page(render_html(REPORT))
    printed = [line.split() for line in format_text(REPORT).splitlines()]
    for row in page.rows[: -1 - len(LEAKS.leaks)]:
        assert " ".join(row).split() in printed
    assert page.rows[-4:] == [
        ["similarity", "sentence of the set", "utterance of the corpus"],
        ["1.00", "when will it come", "When will it come?"],
        ["0.80", "我想退货谢谢", "我想退货谢谢亲"],
        ["1.00", "好的", "好的。"],
    ]
    assert page.headings == [
        "Data report",
        "Turns a session",
        "Tokens an utterance",
        "Speakers",
        "Intents (2)",
        "Leaks: /data/ecd/dev/select.txt",
    ]


def test_a_set_without_leaks_has_a_row_but_no_examples():
    clean = LeakReport("clean/select.txt", 8, 0, 0, 4, 0, 0, [])
    page = Page(render_html(change(leaks=[clean])))
    assert page.rows[-1][:3] == ["clean/select.txt", "8", "0 (0.00%)"]
    assert not any("Leaks" in heading for heading in page.headings)


def test_a_set_of_no_sentences_has_no_shares():
    empty = LeakReport("empty/select.txt", 0, 0, 0, 0, 0, 0, [])
    assert Page(render_html(change(leaks=[empty]))).rows[-1] == ["empty/select.txt", *"000000"]


@pytest.mark.parametrize(
    ("report", "plots"),
    [(REPORT, 2), (WITHOUT_TOKENS, 2), (change(intents={}, labelled_turns=0), 1)],
)
def test_the_page_loads_nothing_and_has_two_histograms_and_named_bars(report, plots):
    text = render_html(report)
    page = Page(text)
    assert page.names().count("svg") == 2 == len(drawings(text))
    assert len(page.bars) == plots
    assert not {"script", "link", "img", "iframe", "object", "image", "base"} & set(page.names())
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "data", "srcset"):
            assert (attributes.get(name) or "#").startswith("#")
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}


HOSTILE = ["<script>alert(1)</script>", "a & <b>", "\"quoted\" 'name'", "--> x -- ]]>", "&lt;"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_and_texts_are_escaped(name):
    leaks = dataclasses.replace(LEAKS, source=name, leaks=[Leak(name, name, name, 0.9)])
    report = change(
        leaks=[leaks], speakers={name: 4}, intents={name: 2}, frequent_utterances=[(name, 2)]
    )
    text = render_html(dataclasses.replace(report, inputs=[name]))
    page = Page(text)
    assert not {"script", "b"} & set(page.names())
    assert page.rows[-1] == ["0.90", name, name]
    assert [name, "2"] in page.rows
    assert f"Leaks: {name}" in page.headings
    assert page.bars == [[[name, "100.0", "4"]], [[name, "100.0", "2"]]]


def test_bars_with_names_are_as_long_as_their_counts():
    speakers, intents = Page(render_html(REPORT)).bars
    assert speakers == [["user", "100.0", "3"], ["agent", "33.3", "1"]]
    assert intents == [["refund", "100.0", "2"], ["退货", "50.0", "1"]]


def test_the_same_report_makes_the_same_page():
    same = render_html(REPORT) == render_html(REPORT)
    assert same, "drawn with names that differ from call to call"


def test_many_intents_and_leaks_are_cut_to_what_can_be_read():
    intents = {f"intent {number:02d}": 100 - number for number in range(60)}
    leaks = [Leak(f"sentence {number}", f"said {number}", "s", 0.9) for number in range(30)]
    text = render_html(change(intents=intents, leaks=[dataclasses.replace(LEAKS, leaks=leaks)]))
    shown = [name for name, _, _ in Page(text).bars[-1]]
    assert shown == list(intents)[: len(shown)]
    assert 20 <= len(shown) < 60
    assert "Intents (60)" in Page(text).headings
    examples = [row for row in Page(text).rows if row[0] == "0.90"]
    assert 5 <= len(examples) < 30
    assert examples[0] == ["0.90", "sentence 0", "said 0"]


@pytest.mark.parametrize(
    ("values", "limit", "expected"),
    [
        ([1, 2, 2, 3, 3, 3, 3], None, [1, 2, 4]),
        # 99.5% of 401 things are not beyond 4: the last bar holds the longest too.
        ([1, 2, 3, 4] * 100 + [1000], None, [100, 100, 100, 101]),
        # Up to the limit there are bars: the longest is in the one at 10.
        ([1, 2, 3, 4] * 100 + [1000], 10, [100, 100, 100, 100, 1]),
        # 0 to 239, of which 238 is the quantile: 238 // 60 = 3 lengths a bar.
        ([*range(240)], None, [3] * 80),
    ],
)
def test_the_bars_of_a_histogram_are_as_high_as_the_counts(values, limit, expected):
    report = change(max_sequence_length=limit, tokens_an_utterance=lengths(*values))
    drawing = drawings(render_html(report))[1]
    heights = [float(bar.get("height")) for bar in elements(drawing, "rect")]
    unit = sum(heights) / sum(expected)
    assert [height / unit for height in heights] == pytest.approx(expected, rel=1e-3)
    lines = [path for path in elements(drawing, "path") if path.get("class") == "limit"]
    assert len(lines) == (limit is not None)
