import pathlib
import subprocess
import sys

import pytest

from dcse_tf.data.dialogue import make_splitter

WORD_KINDS = ("auto", "words", "jieba", "characters")
ROOT = pathlib.Path(__file__).parents[2]
TEXTS = [
    "我的快递到哪了？", "Where is MY parcel?", "iPhone 12 什么时候发货，亲", "don’t", "  \t", "",
]  # fmt: skip
each_kind = pytest.mark.parametrize("kind", WORD_KINDS)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("words", "Where is my parcel, No. 12?", "where is my parcel no 12"),
        ("words", "I don't know, it’s 'new'", "i don't know it’s new"),
        ("words", "café à 3€", "café à 3"), ("words", "发货了吗，TF2", "发货了吗 tf2"),
        ("words", "किताब की, İzmir", "किताब की i\u0307zmir"),
        ("words", "cafe\u0301s d'ou\u0301", "cafe\u0301s d'ou\u0301"),
        ("words", "yes ❤\ufe0f 1\ufe0f\u20e3", "yes 1"),
        ("jieba", "我的快递到哪了", "我 的 快递 到 哪 了"),
        ("jieba", "iPhone 12 什么时候发货，亲", "iphone 12 什么 时候 发货 ， 亲"),
        ("jieba", "Is it new?", "is it new ?"), ("characters", "我的快递", "我 的 快 递"),
        ("characters", "退款123ABC元!", "退 款 123abc 元 !"),
        ("characters", "Is it new?", "is it new ?"), ("characters", "Le café", "le café"),
        ("auto", "iPhone 12 什么时候发货，亲", "iphone 12 什么 时候 发货 ， 亲"),
        ("auto", "Is it new?", "is it new"), ("auto", "?!", ""),
    ],
)  # fmt: skip
def test_a_text_becomes_these_words(kind, text, expected):
    assert make_splitter(kind)(text) == expected.split()


@each_kind
def test_case_does_not_matter(kind):
    split = make_splitter(kind)
    assert split("STRASSE Parcel 发货") == split("straße pARCEL 发货") != []


@each_kind
@pytest.mark.parametrize("text", ["", " ", "\t \n\u3000\xa0"])
def test_white_space_has_no_words(kind, text):
    assert make_splitter(kind)(text) == []


@pytest.mark.parametrize("kind", ["jieba", "characters"])
def test_nothing_but_white_space_is_lost(kind):
    for text in TEXTS:
        words = make_splitter(kind)(text)
        assert "".join(words) == "".join(text.casefold().split())
        assert all(words)


def test_english_needs_no_jieba():
    """Its dictionary takes a second to read."""
    program = (
        "import sys; from dcse_tf.data.dialogue import make_splitter as make;"
        "make('auto')('a parcel'); print('jieba' in sys.modules);"
        "make('auto')('快递'); print('jieba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"]
    assert done.stderr == ""
