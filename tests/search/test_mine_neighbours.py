"""The job that mines a corpus for neighbours: what it writes, resumes and refuses."""

import json

import numpy as np
import pytest
import reference
import tensorflow as tf
from lettered_corpus import TOKENS, turn_ids, write_vocabulary_folder

from dcse_tf.bert import bert
from dcse_tf.bert.wordpiece import WordPiece
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.options import PrepareOptions
from dcse_tf.data.prepare import prepare
from dcse_tf.data.records import check_records, parse_session, parse_session_ids, shard_paths
from dcse_tf.data.turns import read_turns
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.options import OptionError
from dcse_tf.search import neighbours as job
from dcse_tf.search.options import MineNeighboursOptions

SESSIONS = 14


def draw_dialogues():
    """Sessions of 2 to 6 turns of 30 texts, so that texts come back; in some "b" speaks first."""
    rng = np.random.default_rng(0)
    texts = [f"s{i} t{i % 8}" + " w1 w2 w3" * (i % 3) for i in range(30)]
    dialogues = {}
    for number in range(SESSIONS):
        roles = ("ab", "ba")[number % 2]
        chosen = rng.integers(0, len(texts), 2 + number % 5)
        dialogues[f"id {number}"] = [
            (roles[turn % 2], texts[place]) for turn, place in enumerate(chosen)
        ]
    return dialogues


DIALOGUES = draw_dialogues()


def prepare_corpus(folder, dialogues, **settings):
    lines = [
        json.dumps({"session_id": name, "turns": [{"role": r, "text": t} for r, t in turns]})
        for name, turns in dialogues.items()
    ]
    (folder / "dialogues.jsonl").write_text("\n".join(lines) + "\n")
    settings = {"dev_fraction": 0.0, "test_fraction": 0.0, "shards": 2, **settings}
    prepare(
        PrepareOptions(
            format="jsonl", input=(str(folder / "dialogues.jsonl"),), vocab="./vocab",
            output_dir=str(folder / "data"), max_sequence_length=16, **settings,
        ),
        write_vocabulary_folder(folder / "vocab"),
    )  # fmt: skip
    return folder / "data"


def save_encoder(folder, tokens=TOKENS):
    folder.mkdir()
    config = bert.make_bert_config(1, 64, len(tokens))
    backbone = bert.build_backbone(config, 0.0)
    bert.initialize_weights(backbone.trainable_variables, 3, 0.3)
    bert.save_backbone(folder, backbone, config)
    WordPiece(tuple(tokens), lowercase=True).write(folder)
    return folder


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return prepare_corpus(tmp_path_factory.mktemp("mined"), DIALOGUES)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("encoder") / "encoder")


@pytest.fixture
def mine(data_dir, encoder, tmp_path):
    """A function that mines into a folder and returns what it says and what it wrote."""

    def run(name="pairs", **changes):
        settings = {"neighbours": 2, "keep_share": 1.0, "context_weight": 0.5}
        settings |= {"data_dir": str(data_dir), "encoder": str(encoder)}
        output = tmp_path / name
        options = MineNeighboursOptions(output_dir=str(output), **{**settings, **changes})
        return job.mine_neighbours(options), output

    return run


def read_pairs(folder):
    """The names of the pairs and their texts' ids."""
    manifest = read_manifest(folder)
    found = {}
    for record in tf.data.TFRecordDataset(shard_paths(folder, manifest.splits["train"])):
        (name,), _ = parse_session_ids(record[None])
        found[name.numpy().decode()] = parse_session(record)["token_ids"].to_list()
    return found


def expect(encoder, weight=0.5, center=True, same_role=True, count=2):
    """The pairs by the reference: names of turns to cosines, for each two texts the best."""
    texts = sorted({text for turns in DIALOGUES.values() for _, text in turns})
    encoded = SentenceEncoder.load(encoder).encode(texts, show_progress=False).astype(np.float64)
    embed = dict(zip(texts, encoded, strict=True))
    mean = encoded.mean(axis=0) if center else np.zeros(encoded.shape[1])
    names, keys, dialogues, said, roles = [], [], [], [], []
    # The sessions are dealt to two shards, which are read one after the other.
    for session in [*list(DIALOGUES)[::2], *list(DIALOGUES)[1::2]]:
        turns = DIALOGUES[session]
        for place, (role, text) in enumerate(turns):
            around = [turns[p][1] for p in (place - 1, place + 1) if 0 <= p < len(turns)]
            around = [embed[other] for other in around]
            names.append(f"{session}:{place}")
            keys.append(reference.turn_key(embed[text], around, weight, mean))
            dialogues.append(session)
            said.append(text)
            roles.append(role == turns[0][0] if same_role else True)
    found = reference.mutual_neighbours(keys, dialogues, said, roles, count)
    best = {}
    for (i, j), value in sorted(found.items(), key=lambda item: (-item[1], item[0])):
        best.setdefault(frozenset((said[i], said[j])), (f"{names[i]} {names[j]}", value))
    return dict(best.values())


@pytest.mark.parametrize(
    "changes", [{}, {"same_role": False}, {"center": False}, {"context_weight": 0.0}]
)
def test_the_pairs_are_those_of_the_reference(mine, encoder, changes):
    _, folder = mine(**changes)
    renamed = {"weight" if k == "context_weight" else k: v for k, v in changes.items()}
    expected = expect(encoder, **renamed)
    assert len(expected) > 5
    assert set(read_pairs(folder)) == set(expected)


def test_shares_and_cosines_take_the_best(mine, encoder):
    expected = sorted(expect(encoder).items(), key=lambda item: -item[1])
    mined, folder = mine(keep_share=0.5)
    count = -(-len(expected) // 2)
    assert set(read_pairs(folder)) == {name for name, _ in expected[:count]}
    assert (mined.mutual, mined.pairs) == (len(expected), count)
    assert mined.least == pytest.approx(expected[count - 1][1], abs=2e-6)
    values = [value for _, value in expected]
    assert mined.quantiles == pytest.approx(np.quantile(values, [0, 0.25, 0.5, 0.75, 1]), abs=2e-6)
    least = (values[2] + values[3]) / 2
    _, folder = mine("few", min_cosine=least)
    assert set(read_pairs(folder)) == {name for name, _ in expected[:3]}


def test_a_pair_has_the_tokens_of_its_turns_and_the_corpus_their_counts(mine, data_dir):
    mined, folder = mine()
    texts = set()
    for name, (first, second) in read_pairs(folder).items():
        for turn, ids in zip(name.split(" id "), (first, second), strict=True):
            session, place = turn.removeprefix("id ").split(":")
            text = DIALOGUES[f"id {session}"][int(place)][1]
            words = text.split()
            assert ids[3:-1] == [TOKENS.index(word) for word in words[2:]]
            assert [*ids[:3], ids[-1]] == turn_ids(int(words[0][1:]), int(words[1][1:]))
            texts.add(text)
    manifest, corpus = read_manifest(folder), read_manifest(data_dir)
    check_records(folder, manifest)
    train = manifest.splits["train"]
    assert (train.sessions, train.utterances) == (mined.pairs, 2 * mined.pairs)
    assert manifest.tokenizer_fingerprint == corpus.tokenizer_fingerprint
    assert manifest.max_sequence_length == corpus.max_sequence_length
    assert manifest.settings["the corpus"] == corpus.corpus_fingerprint
    assert mined.paired_texts == len(texts)
    said = [text for turns in DIALOGUES.values() for _, text in turns]
    assert (mined.turns, mined.texts) == (len(said), len(set(said)))
    assert mined.paired_turns == sum(text in texts for text in said)


def test_the_sample_can_be_read(mine):
    mined, folder = mine()
    sample = (folder / job.SAMPLE_FILE).read_text()
    assert sample.startswith(mined.describe())
    assert sample.count("similarity 0.") + sample.count("similarity 1.") == min(50, mined.pairs)
    for name in sorted(read_pairs(folder))[:3]:
        session, place = name.split(" id ")[0].split(":")
        turns = [text for _, text in DIALOGUES[session]]
        before = turns[int(place) - 1] if int(place) else "-"
        assert f"  {turns[int(place)]}\n      after:  {before}\n" in sample
        assert f"({session}, turn {int(place) + 1})" in sample


def test_the_same_is_written_every_time(mine):
    (_, one), (_, two) = mine("one"), mine("two")
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes()
    assert {path.name for path in one.iterdir()} == {path.name for path in two.iterdir()}


@pytest.mark.parametrize("step", ["make_keys", "find_others", "_write_sample"])
def test_a_job_that_was_stopped_goes_on_and_ends_the_same(mine, monkeypatch, step, tmp_path):
    _, whole = mine("whole")

    def stop(*given):
        raise KeyboardInterrupt

    # Blocks of seven texts, turns or pairs, so that there are several.
    for name in ("_TEXTS_AT_A_TIME", "_TURNS_AT_A_TIME", "_PAIRS_AT_A_TIME"):
        monkeypatch.setattr(job, name, 7)
    with monkeypatch.context() as patch:
        patch.setattr(job, step, stop)
        with pytest.raises(KeyboardInterrupt):
            mine()
    with pytest.raises(InputError, match=r"begun with other settings.*`center`: False \(was True"):
        mine(center=False)
    embedded = []
    embed = job.embed_inputs
    monkeypatch.setattr(job, "embed_inputs", lambda *a, **k: embedded.append(a) or embed(*a, **k))
    _, folder = mine()
    assert not embedded
    assert set(read_pairs(folder)) == set(read_pairs(whole))
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "pairs"}


def test_a_job_is_not_resumed_with_another_setting_of_the_index(mine, monkeypatch):
    pytest.importorskip("faiss")

    def stop(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job, "_write_sample", stop)
        with pytest.raises(KeyboardInterrupt):
            mine(index_type="binary", binary_candidates=1)
    with pytest.raises(InputError, match=r"`binary_candidates`: 2 \(was 1\)"):
        mine(index_type="binary", binary_candidates=2)


def test_a_folder_that_exists_is_kept_or_replaced(mine):
    mine()
    with pytest.raises(FileExistsError, match=r"pairs already exists; .* `overwrite`"):
        mine(keep_share=0.1)
    mined, folder = mine(keep_share=0.1, overwrite=True)
    assert len(read_pairs(folder)) == mined.pairs < mined.mutual


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_an_approximate_index_finds_the_same_pairs(mine, kind):
    pytest.importorskip("faiss")
    (_, exact), (_, found) = mine("exact"), mine("found", index_type=kind)
    assert read_pairs(exact) == read_pairs(found)


def test_an_encoder_of_another_vocabulary_is_refused(mine, tmp_path):
    other = save_encoder(tmp_path / "other", [*TOKENS, "w99"])
    with pytest.raises(
        InputError, match="tokenised with another vocabulary, casing or prefix than"
    ):
        mine(encoder=str(other))
    assert not (tmp_path / "pairs").exists()


def test_where_nothing_is_found_one_error_says_what_to_change(mine, tmp_path):
    with pytest.raises(
        InputError, match=r"none above `min_cosine`=1 among .* lower the one or rai"
    ):
        mine(min_cosine=1.0)
    (tmp_path / "one").mkdir()
    one = prepare_corpus(tmp_path / "one", {"a": DIALOGUES["id 4"]})
    with pytest.raises(
        InputError, match=r"6 turns in 1 sessions no two .* more dialogues, or more"
    ):
        mine("other", data_dir=str(one))
    # What was found stays for another try at keeping some of it.
    mined, _ = mine()
    assert mined.pairs == mined.mutual


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nprobe": 3}, "`nprobe`=3: has no meaning with `index_type`=exact"),
        ({"nprobe": 3, "index_type": "hnsw_int8"}, "`nprobe`=3: has no .*`index_type`=hnsw_int8"),
        ({"index_type": "flat"}, "`index_type`=flat: expected one of 'exact', 'hnsw', 'ivf', "),
        ({"keep_share": 1.5}, "`keep_share`=1.5: expected at most 1"),
        ({"context_weight": -1.0}, "`context_weight`=-1.0: expected at least 0"),
        ({"neighbours": 0}, "`neighbours`=0: expected at least 1"),
        ({"projection": "context"}, "`projection`=context: utterances are compared by their embed"),
        ({"output_dir": "data"}, "would overwrite `data_dir`=data"),
    ],
)
def test_settings_are_checked_first(changes, message):
    settings = {"data_dir": "data", "encoder": "e", "output_dir": "pairs"}
    with pytest.raises(OptionError, match=message):
        MineNeighboursOptions(**{**settings, **changes})


def test_turns_are_read_as_columns(data_dir):
    turns = read_turns(data_dir, read_manifest(data_dir).splits["train"])
    assert turns.session_ids == [*list(DIALOGUES)[::2], *list(DIALOGUES)[1::2]]
    before, after = turns.around()
    place = 0
    for session in turns.session_ids:
        own = DIALOGUES[session]
        said = [turns.tokens_of(t).tolist() for t in turns.text[place : place + len(own)]]
        words = [[TOKENS.index(word) for word in text.split()] for _, text in own]
        assert [ids[1:-1] for ids in said] == words
        texts = turns.text[place : place + len(own)].tolist()
        assert before[place : place + len(own)].tolist() == [-1, *texts[:-1]]
        assert after[place : place + len(own)].tolist() == [*texts[1:], -1]
        # Numbered by who speaks first.
        assert turns.speaker[place : place + len(own)].tolist() == [i % 2 for i in range(len(own))]
        assert turns.locate(place + len(own) - 1) == (session, len(own) - 1)
        place += len(own)
    assert place == len(turns)
    assert turns.read_texts(2, 5).to_list() == [turns.tokens_of(t).tolist() for t in (2, 3, 4)]
