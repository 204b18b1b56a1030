import collections
import itertools
import random
from fractions import Fraction

import pytest
from shared_files import shared_file

from dcse_tf.data.corpus import read_sessions
from dcse_tf.evaluation.retrieval import read_retrieval_set
from dcse_tf.input_files import BadLines
from dcse_tf.inspecting import statistics
from dcse_tf.inspecting.statistics import LeakFinder
from dcse_tf.sets.options import InspectOptions

# Few letters, so that texts come near each other; marks and case that do not count.
ALPHABETS = {"english": "abABc  ,.", "chinese": "好的吗好的，！ ", "mixed": "好aB的 _?"}


def normalize(text):
    return "".join(char for char in text.casefold() if char.isalnum())


def trigrams(key):
    return {key[i : i + 3] for i in range(len(key) - 2)} or {key}


def jaccard(first, second):
    a, b = trigrams(first), trigrams(second)
    return Fraction(len(a & b), len(a | b))


def find_by_hand(sentences, utterances, threshold):
    """Normalised sentence -> (first of its spellings, id, utterance, similarity): all pairs."""
    found, spellings = {}, {}
    for sentence in filter(normalize, sentences):
        spellings.setdefault(normalize(sentence), sentence)
    for key, sentence in spellings.items():
        best = None
        for session_id, text in utterances:
            other = normalize(text)
            if not other or jaccard(key, other) < threshold:
                continue
            # Equal texts come before those that only have equal trigrams.
            rank = (key == other, jaccard(key, other))
            if best is None or rank > best[0]:
                best = rank, session_id, text
        if best:
            value = 1.0 if best[0][0] else min(float(best[0][1]), 0.999)
            found[key] = (sentence, best[1], best[2], pytest.approx(value, abs=1e-6))
    return spellings, found


def find(sentences, utterances, threshold=0.8, chunk=2048):
    finder = LeakFinder("select.txt", sentences, threshold, chunk)
    for session_id, text in utterances:
        finder.add(session_id, text)
    return finder.finish()


def find_one(sentence, *utterances, threshold=0.8):
    """(exact, near) of a set of one sentence."""
    report = find([sentence], [("s", text) for text in utterances], threshold)
    assert len(report.leaks) == report.exact + report.near
    return report.exact, report.near


def draw_texts(kind, seed, count, longest=12):
    rng = random.Random(f"{kind} {seed}")
    letters = ALPHABETS[kind]
    return ["".join(rng.choices(letters, k=rng.randint(1, longest))) for _ in range(count)]


@pytest.mark.parametrize("chunk", [1, 3, 2048])
@pytest.mark.parametrize("threshold", ["0.1", "0.5", "0.8", "1"])
@pytest.mark.parametrize("kind", ALPHABETS)
def test_leaks_are_those_of_comparing_all_pairs(kind, threshold, chunk):
    for seed in range(4):
        sentences = draw_texts(kind, seed, 25)
        utterances = [(f"s{i // 3}", t) for i, t in enumerate(draw_texts(kind, -1 - seed, 50))]
        report = find(sentences, utterances, float(threshold), chunk)
        keys, expected = find_by_hand(sentences, utterances, Fraction(threshold))
        ordered = sorted(expected, key=lambda key: (-len(key), key))
        found = [(k.sentence, k.session_id, k.utterance, k.similarity) for k in report.leaks]
        assert found == [expected[key] for key in ordered]
        spoken = {normalize(text) for _, text in utterances}
        exact = [key for key in expected if key in spoken]
        assert (report.source, report.sentences) == ("select.txt", len(keys))
        assert (report.exact, report.near) == (len(exact), len(expected) - len(exact))
        assert report.long_sentences == sum(len(key) >= 8 for key in keys)
        assert report.long_exact == sum(len(key) >= 8 for key in exact)
        assert report.long_near == sum(len(key) >= 8 for key in expected) - report.long_exact


@pytest.mark.parametrize("kind", ALPHABETS)
def test_a_smaller_threshold_never_finds_fewer(kind):
    sentences = draw_texts(kind, 1, 40)
    utterances = [("s", text) for text in draw_texts(kind, 2, 60)]
    reports = [find(sentences, utterances, 0.1 * tenths) for tenths in range(10, 0, -1)]
    found = [{leak.sentence: leak.similarity for leak in report.leaks} for report in reports]
    for fewer, more in itertools.pairwise(found):
        assert fewer.items() <= more.items()
    assert len(found[-1]) > len(found[0])
    assert len({report.exact for report in reports}) == 1


@pytest.mark.parametrize("kind", ALPHABETS)
def test_the_order_of_utterances_changes_no_figure(kind):
    sentences, texts = draw_texts(kind, 5, 30), draw_texts(kind, 6, 60)
    before = find(sentences, [("s", text) for text in texts], 0.3, chunk=3)
    after = find(sentences, [("s", text) for text in sorted(texts)], 0.3, chunk=3)
    assert (after.exact, after.near, after.long_near) == (
        before.exact,
        before.near,
        before.long_near,
    )
    figures = [[(k.sentence, k.similarity) for k in report.leaks] for report in (before, after)]
    assert figures[0] == figures[1]


@pytest.mark.parametrize(
    ("common", "union", "threshold"),
    [(4, 5, 0.8), (1, 10, 0.1), (3, 10, 0.3), (7, 10, 0.7), (2, 3, 2 / 3), (5, 6, 5 / 6)],
)
def test_the_threshold_itself_is_near_enough(common, union, threshold):
    # n + 2 different letters have n trigrams: "abcdef" 4, all of them in the 5 of "abcdefg".
    shorter, longer = "abcdefghijkl"[: common + 2], "abcdefghijkl"[: union + 2]
    for sentence, utterance in ((shorter, longer), (longer, shorter)):
        assert find_one(sentence, utterance, threshold=threshold) == (0, 1)
        assert find_one(sentence, utterance, threshold=threshold + 0.001) == (0, 0)
        (leak,) = find([sentence], [("s", utterance)], threshold).leaks
        assert leak.similarity == pytest.approx(common / union, abs=1e-6)


@pytest.mark.parametrize(
    ("sentence", "utterance"),
    [("ababab", "abababab"), ("哈哈哈", "哈哈哈哈哈"), ("babab", "ababa"), ("abcabca", "cabcabc")],
)
def test_equal_trigrams_in_another_text_are_near_and_not_exact(sentence, utterance):
    assert find_one(sentence, utterance, threshold=1.0) == (0, 1)
    (leak,) = find([sentence], [("s", utterance)], 1.0).leaks
    assert 0.99 < leak.similarity < 1.0
    assert find_one(sentence, utterance, sentence) == (1, 0)
    assert find_one(sentence, sentence, utterance) == (1, 0)


@pytest.mark.parametrize(
    ("sentence", "utterance", "exact"),
    [
        ("ok", "OK!", 1),
        ("好", "好。", 1),
        ("ok", "oka", 0),
        ("哈哈", "哈哈哈", 0),
        ("a", "b", 0),
        ("a", "aaa", 0),
    ],
)
def test_texts_below_three_characters_leak_only_as_a_whole(sentence, utterance, exact):
    assert find_one(sentence, utterance, threshold=0.1) == (exact, 0)
    assert find_one(utterance, sentence, threshold=0.1) == (exact, 0)


@pytest.mark.parametrize("nothing", ["", " ", "!!!", "……", "_", "？ 。", "😀", "- -"])
def test_texts_without_a_letter_or_digit_never_leak(nothing):
    assert find_one("hello there", nothing, threshold=0.1) == (0, 0)
    report = find([nothing, "..."], [("s", nothing), ("s", "hello")], 0.1)
    assert (report.sentences, report.long_sentences, report.leaks) == (0, 0, [])


@pytest.mark.parametrize(
    ("sentence", "utterance"),
    [
        ("Where's my parcel?", "where s MY-parcel"),
        ("好的，谢谢！", "好 的谢谢"),
        ("a_b c 12", "ABC12."),
        ("Straße", "STRASSE"),
        ("ＯＫ亲", "ｏｋ 亲~"),
        ("ok ❤\ufe0f 1\ufe0f\u20e3", "OK 1"),
    ],
)
def test_case_spaces_and_punctuation_do_not_count(sentence, utterance):
    assert find_one(sentence, utterance, threshold=1.0) == (1, 0)


def test_vowel_signs_do_count():
    assert find_one("किताब की!", "किताब, की", threshold=1.0) == (1, 0)
    assert find_one("किताब की", "काताब को", threshold=1.0) == (0, 0)


@pytest.mark.parametrize("other", ["Where's my parcels?", "好的谢", "ABC13", "1"])
def test_letters_and_digits_do_count(other):
    for sentence in ("Where's my parcel?", "好的，谢谢！", "ABC12"):
        assert find_one(sentence, other, threshold=1.0) == (0, 0)


@pytest.mark.parametrize("chunk", [1, 2, 2048])
def test_the_first_of_the_best_utterances_is_kept_as_it_was_said(chunk):
    # Trigrams in common with the sentence's four: 3 of 5, 4 of 5, 4 of 5, 2 of 4.
    said = [("s0", "abcdex"), ("s1", "Abcdefg"), ("s2", "xabcdef"), ("s3", "abcd")]
    (leak,) = find(["ABC def"], said, 0.5, chunk).leaks
    assert (leak.sentence, leak.session_id, leak.utterance) == ("ABC def", "s1", "Abcdefg")
    said += [("s4", "a b c d e f"), ("s5", "abcdef")]
    (leak,) = find(["ABC def"], said, 0.5, chunk).leaks
    assert (leak.session_id, leak.utterance, leak.similarity) == ("s4", "a b c d e f", 1.0)


def test_utterances_are_compared_once_and_then_forgotten(monkeypatch):
    finder = LeakFinder("select.txt", ["abcdef"], 0.8, utterances_at_a_time=3)
    compared = []

    def spy(key):
        compared.append(key)
        return trigrams(key)

    monkeypatch.setattr(statistics, "_trigrams", spy)
    for text in ("a1", "A1", "b2", "c3", "d4", "", "e5", "f6", "g7"):
        finder.add("s", text)
    finder.finish()
    assert compared == ["a1", "b2", "c3", "d4", "e5", "f6", "g7"]


def test_a_sentence_that_a_set_has_twice_counts_once():
    report = find(
        ["Ok then", "ok, then", "OK THEN!", "other"], [("s", "ok then"), ("t", "ok then")]
    )
    assert (report.sentences, report.exact, report.near) == (2, 1, 0)
    assert [leak.sentence for leak in report.leaks] == ["Ok then"]


def test_long_sentences_have_eight_characters_that_count():
    # Characters that count: 7, 8, 12, 8, 8. Trigrams in common: 10 of 11 of the third sentence,
    # 6 of 7 of the fourth.
    sentences = ["abcdefg", "Ab cd, ef gh.", "mnopqrstuvwx", "我要退货还有发票", "12345678"]
    said = ["abcdefg", "abcdefgh", "mnopqrstuvwxy", "我要退货还有发票了"]
    report = find(sentences, [("s", text) for text in said], 0.8)
    assert (report.sentences, report.exact, report.near) == (5, 2, 2)
    assert (report.long_sentences, report.long_exact, report.long_near) == (4, 1, 2)
    assert [len(normalize(leak.sentence)) for leak in report.leaks] == [12, 8, 8, 7]


def test_the_published_dev_set_against_the_public_training_sample():
    name = "dialoguecse_official/edc/"
    training = shared_file(f"{name}train/train_data.txt.sample")
    sentences = read_retrieval_set(shared_file(f"{name}dev/select.txt")).sentences
    said = collections.Counter()
    for line in training.read_text(encoding="utf-8").splitlines():
        before, after, _, _, responses, _ = line.split("\t")
        said.update(
            map(normalize, [*before.split("|"), responses.split("|")[0], *after.split("|")])
        )
    del said[""]

    finder = LeakFinder("select.txt", sentences, 0.8)
    config = InspectOptions(
        format="dialoguecse", input=(str(training),), output_dir="out", join_consecutive=False
    )
    for session in read_sessions(config, BadLines(0), collections.Counter()):
        for turn in session.turns:
            finder.add(session.session_id, turn.text)
    report = finder.finish()

    keys = list(dict.fromkeys(filter(None, map(normalize, sentences))))
    exact = {key for key in keys if key in said}
    assert report.sentences == len(keys)
    assert report.exact == len(exact) > 0
    assert report.long_exact == sum(len(key) >= 8 for key in exact)
    found = {normalize(leak.sentence): leak for leak in report.leaks}
    assert {key for key, leak in found.items() if leak.similarity == 1.0} == exact
    # Near ones by comparing every utterance with all of those found and some of the others.
    near = [key for key in found if key not in exact]
    assert len(near) == report.near
    others = random.Random(0).sample([key for key in keys if key not in found], 20)
    for key in near[:10] + others:
        best = max(jaccard(key, other) for other in said)
        assert (best >= Fraction(4, 5)) == (key in found)
        if key in found:
            assert found[key].similarity == pytest.approx(min(float(best), 0.999), abs=1e-6)
