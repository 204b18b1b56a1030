"""Whatever family an encoder is of: what is made of it goes the whole way."""

import collections
import json
import pathlib

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
import transformers
from tiny_checkpoints import prepare_for, save_start
from train_options import SMALL, make_options, rewind, write_untrained
from written_dialogues import json_lines, make_dialogues

import dcse_tf
from dcse_tf.bert.pairs import strip_ends
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.input_files import read_json_object
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.training.train import train

pytestmark = pytest.mark.slow

PREFIX = "query: "
TEXTS = ["Where is my parcel", "", "It left our store on monday", "您好", "Thanks for the cats"]


@pytest.fixture(scope="module", params=["distilbert", "xlm-roberta", "roberta", "mpnet"])
def start(request, tmp_path_factory) -> pathlib.Path:
    """A checkpoint in HuggingFace's form."""
    folder = tmp_path_factory.mktemp("start") / request.param
    turns = [text for turns in make_dialogues(60).values() for _, text in turns]
    size = 400 if request.param == "roberta" else 120
    return save_start(folder, request.param, [*turns, *TEXTS * 3], size)


@pytest.fixture(scope="module")
def corpus(start, dialogues_file, tmp_path_factory) -> pathlib.Path:
    """Prepared with a text before every utterance."""
    return prepare_for(start, dialogues_file, tmp_path_factory.mktemp("prepared"), PREFIX)


@pytest.fixture(scope="module")
def expected(start) -> np.ndarray:
    """The start's embeddings, its prefix put there by hand."""
    encoder = SentenceEncoder.load(start, max_sequence_length=16)
    return encoder.encode([PREFIX + text for text in TEXTS], show_progress=False)


def run(start, corpus, folder, **settings) -> pathlib.Path:
    values = {"encoder": str(start), "data_dir": str(corpus), "run_dir": str(folder / "run")}
    train(make_options(**{**values, "global_batch_size": 4, **settings}))
    return folder / "run"


@pytest.fixture(scope="module")
def trained(start, corpus, tmp_path_factory) -> pathlib.Path:
    """A run directory without a step: what is written must embed as what was read."""
    folder, values = tmp_path_factory.mktemp("run"), {"batch_form": "dense", "negatives": 3}
    values |= {"encoder": str(start), "data_dir": str(corpus), "global_batch_size": 4}
    write_untrained(folder / "encoder", **values)
    return folder


def embed(model, **settings) -> np.ndarray:
    return SentenceEncoder.load(model, **settings).encode(TEXTS, show_progress=False)


def test_a_run_embeds_with_the_prefix_of_its_corpus(start, trained, expected):
    np.testing.assert_allclose(embed(trained), expected, atol=1e-5)
    assert np.ptp(expected, axis=0).min() > 1e-3
    config = json.loads((trained / "encoder/config.json").read_text())
    assert config["model_type"] == ("mpnet" if start.name == "mpnet" else "bert")


@pytest.mark.parametrize("start", ["distilbert", "xlm-roberta", "roberta"], indirect=True)
def test_the_exported_tokenizer_gives_the_ids_of_the_exported_weights(trained, tmp_path):
    to = {"output_dir": tmp_path / "export", "format": "sentence_transformers"}
    folder = dcse_tf.export(run_dir=trained, **to)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = read_vocabulary(folder).make_tokenizer().tokenize(tf.constant(TEXTS), 16)[0]
    texts = [PREFIX + text for text in TEXTS]
    assert theirs(texts, truncation=True)["input_ids"] == ours.to_list()
    prompts = json.loads((folder / "config_sentence_transformers.json").read_text())["prompts"]
    assert prompts == dict.fromkeys(("prefix", "query", "document"), PREFIX)


@pytest.mark.parametrize("start", ["roberta"], indirect=True)
def test_a_turn_of_one_token_is_read_behind_a_prefix(start, tmp_path):
    """With byte pairs, the prefix's last space belongs to the turn's first token."""
    word = next(x[1:] for x in read_vocabulary(start).tokens if x[0] == "Ġ" and x[1:].isalpha())
    dialogues = {str(n): [("x", word), ("y", "i am here")] for n in range(9)}
    (tmp_path / "a.jsonl").write_text(json_lines(dialogues))
    corpus = prepare_for(start, tmp_path / "a.jsonl", tmp_path, PREFIX)
    assert read_json_object(corpus / "manifest.json")["dropped"]["empty_utterances"] == 0


@pytest.mark.parametrize("start", ["xlm-roberta", "roberta"], indirect=True)
def test_masked_language_modelling_predicts_no_prefix_and_goes_on_from_it(
    start, corpus, expected, tmp_path
):
    values = {"encoder": str(start), "data_dir": str(corpus), "task": "mlm", "mask_rate": 1.0}
    training = write_untrained(tmp_path / "mlm", **values, global_batch_size=4, layout="padded")
    batch = next(iter(training.dataset()))
    width = int(tf.shape(batch["padding_mask"])[1])
    places = batch["masked_lm_places"] % width
    assert int(tf.reduce_min(places)) > training.setup.vocabulary.count_prefix() > 0
    np.testing.assert_allclose(embed(tmp_path / "mlm"), expected, atol=1e-5)


# Its distances are weights too; the other three are trained as BERTs.
@pytest.mark.parametrize("start", ["mpnet"], indirect=True)
def test_a_resumed_run_leaves_the_encoder_of_a_straight_one(start, corpus, tmp_path):
    settings = {
        **SMALL, "encoder_size": "", "batch_form": "dense", "negatives": 3, "dropout": 0.1,
        "freeze_embeddings": False, "cosine_weight": 0.8, "prediction_weight": 0.95,
        "rehearsal_weight": 1.0, "rehearsal_texts": 4, "projection_dim": 8, "projection_share": 0.5,
    }  # fmt: skip
    straight = run(start, corpus, tmp_path, **settings)
    resumed = rewind(straight, 2)
    run(start, corpus, tmp_path, **settings, run_dir=str(resumed))

    def read(folder):  # the projection heads and the encoder
        files = (folder / "encoder").glob("*.safetensors")
        return dict(collections.ChainMap(*map(safetensors.numpy.load_file, files)))

    moved = np.abs(embed(resumed) - embed(start, prefix=PREFIX)).max()
    straight, resumed = read(straight), read(resumed)
    assert straight.keys() == resumed.keys()
    for name, tensor in straight.items():
        np.testing.assert_array_equal(resumed[name], tensor, err_msg=name)
    assert moved > 1e-3
    before = safetensors.numpy.load_file(start / "model.safetensors")
    assert before.keys() < straight.keys()  # it has no heads
    bias = "encoder.relative_attention_bias.weight"
    assert not np.array_equal(straight[bias], before[bias])


RERANKER = {
    "task": "response_selection", "context_turns": 2, "max_context_tokens": 60,
    "max_response_tokens": 40,
}  # fmt: skip


@pytest.mark.parametrize("start", ["xlm-roberta"], indirect=True)
def test_a_re_ranker_begins_with_it_and_reads_no_prefix(start, dialogues_file, tmp_path):
    rankings, drawn = [], []
    for name, prefix in {"with": PREFIX, "without": ""}.items():
        data = prepare_for(start, dialogues_file, tmp_path / name, prefix, longest=64)
        values = {"encoder": str(start), "data_dir": str(data), "global_batch_size": 4}
        folder = tmp_path / name / "reranker"
        training = write_untrained(folder, **values, **RERANKER)
        drawn.append(next(training.dataset().as_numpy_iterator()))
        ranked = Reranker.load(folder).rank(["Where is it"], TEXTS)
        rankings.append([(found.text, found.score) for found in ranked])
    for tensors in zip(*(batch.values() for batch in drawn), strict=True):
        np.testing.assert_array_equal(*tensors)
    assert rankings[0] == rankings[1]
    assert sorted(text for text, _ in rankings[0]) == sorted(TEXTS)
    assert len({score for _, score in rankings[0]}) > 1


@pytest.mark.parametrize("start", ["distilbert", "xlm-roberta", "roberta"], indirect=True)
def test_an_exported_tokenizer_reads_a_dialogue_as_training_does(start, tmp_path):
    """The turns of a context, each with [EOT], are one text to HuggingFace's libraries."""
    vocabulary = read_vocabulary(start).with_end_of_turn()
    vocabulary.write_tokenizer(tmp_path, 99)
    *turns, response = ["where is it", "it left our store", "ok"]
    texts = vocabulary.make_tokenizer().tokenize(tf.constant([*turns, response]), 99)[0]
    *own, last = strip_ends(texts).to_list()
    end, sep = vocabulary.tokens.index("[EOT]"), vocabulary.sep_id
    first = [vocabulary.cls_id, *(i for turn in own for i in (*turn, end)), sep]
    library = transformers.AutoTokenizer.from_pretrained(tmp_path)
    found = library(" ".join(f"{turn} [EOT]" for turn in turns), response)["input_ids"]
    assert found == [*first, *last, sep]


@pytest.mark.parametrize("start", ["roberta", "xlm-roberta"], indirect=True)
def test_what_follows_a_prefix_is_the_whole_text(start):
    vocabulary = read_vocabulary(start).with_prefix(PREFIX)
    ids = vocabulary.make_tokenizer().tokenize(["it left our store"], 99)[0][0].numpy()
    own = [vocabulary.tokens[i] for i in ids[1 + vocabulary.count_prefix() : -1]]
    assert vocabulary.make_fast().decoder.decode(own).strip() == "it left our store"


@pytest.mark.parametrize("start", ["roberta"], indirect=True)
def test_a_prefix_that_changes_the_tokens_after_it_is_refused(start, corpus, tmp_path):
    with pytest.raises(InputError, match=r"data: was prepared with the prefix 'query: ', after"):
        run(start, corpus, tmp_path, **RERANKER)
