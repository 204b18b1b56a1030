"""Hashes, and what a result was made from."""

import json

import pytest

from dcse_tf.errors import InputError
from dcse_tf.files import MadeFrom, hash_bytes, hash_file, hash_number

# Of FIPS 180-2, appendix B.1.
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_hashes_are_sha_256_of_the_content(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert hash_bytes(b"abc") == hash_file(tmp_path / "a") == ABC
    with pytest.raises(FileNotFoundError):
        hash_file(tmp_path / "b")


def test_hash_numbers_fill_64_bits_evenly():
    numbers = [hash_number(str(i)) for i in range(1000)]
    assert len(set(numbers)) == 1000
    assert all(0 <= number < 2**64 for number in numbers)
    # The mean of 1000 uniform draws is within 5 standard deviations (1 / sqrt(12,000)) of a half.
    assert abs(sum(numbers) / 1000 / 2**64 - 0.5) < 5 / 12_000**0.5


def test_what_was_written_is_read_and_is_for_people(tmp_path):
    made_from = MadeFrom({"`pooling`": "mean", "the corpus": ABC, "devices": 2, "文件": None})
    made_from.write(tmp_path / "made_from.json")
    assert MadeFrom.read(tmp_path / "made_from.json") == made_from
    assert "文件" in (tmp_path / "made_from.json").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["made_from.json"]


def test_every_change_is_told_and_nothing_else():
    before = MadeFrom({"same": 1, "other": "a", "gone": ABC, "0": 0})
    now = MadeFrom({"same": 1, "other": "b", "new": True, "0": 0})
    assert before.compare(before) == {}
    assert before.compare(now) == {
        "other": "other: b (was a)",
        "gone": "gone: none (was SHA-256 ba7816bf8f01...)",
        "new": "new: True (was none)",
    }


def test_changes_are_refused_with_what_the_user_can_do():
    before = MadeFrom({"`a`": 1, "`b`": 2})
    before.require(MadeFrom({"`b`": 2, "`a`": 1}), "x: made otherwise", "go away")
    with pytest.raises(InputError, match=r"^x: made otherwise: `a`: 3 \(was 1\); go away$"):
        before.require(MadeFrom({"`a`": 3, "`b`": 2}), "x: made otherwise", "go away")


@pytest.mark.parametrize("content", ["", "{", "[1]", json.dumps("a"), None])
def test_a_record_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "made_from.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=str(path)):
        MadeFrom.read(path)
