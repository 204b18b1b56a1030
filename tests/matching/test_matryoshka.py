"""The plain cosine contrasted over all dimensions and over the first few."""

import numpy as np
import pytest
import reference
from tiny_batch import CANDIDATES, CONTEXTS, TEMPERATURE, make_batch
from tiny_bert import DIM, build_backbone, draw_utterances, encode_alone
from train_options import make_options

from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.data.stream import PADDED
from dcse_tf.matching.dialogue_cse import Objective, build_dialogue_cse
from dcse_tf.options import OptionError


def test_the_loss_is_the_mean_over_all_dimensions_and_the_first_of_each_number():
    backbone, dims = build_backbone(), (3, 17)
    objective = Objective(TEMPERATURE, cosine_weight=0.6, matryoshka_dims=dims)
    outputs = build_dialogue_cse(backbone, PADDED, objective)(make_batch())

    encoder = build_bert_encoder(backbone)
    tokens = [encode_alone(encoder, ids).astype(float) for ids in draw_utterances(8)]
    for row, loss in enumerate(outputs["loss"].numpy()):
        turns = [tokens[i] for i in CONTEXTS[row]]
        matching = [reference.similarity(turns, tokens[j]) for j in CANDIDATES[row]]
        losses = []
        for dim in (DIM, *dims):
            context = [turn[:, :dim] for turn in turns]
            cosines = [reference.plain_cosine(context, tokens[j][:, :dim]) for j in CANDIDATES[row]]
            losses.append(reference.nt_xent(cosines, TEMPERATURE))
        expected = 0.4 * reference.nt_xent(matching, TEMPERATURE) + 0.6 * np.mean(losses)
        assert loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "so it needs `cosine_weight`"),
        ({"cosine_weight": 1.0, "projection_dim": 8}, "the embeddings are not contrasted"),
        ({"cosine_weight": 1.0, "matryoshka_dims": ("8", "8")}, "=8,8: expected different whole"),
        ({"cosine_weight": 1.0, "matryoshka_dims": ("0",)}, "=0: expected different whole"),
    ],
)
def test_what_cannot_be_is_refused(values, message):
    beside = {"matryoshka_dims": ("8", "16"), **values}
    with pytest.raises(OptionError, match=f"`matryoshka_dims`.*{message}"):
        make_options(data_dir="d", run_dir="r", encoder_size="tiny", **beside)


def test_beside_heads_the_embeddings_must_be_contrasted_too():
    heads = {"projection_dim": 8, "projection_share": 0.9, "matryoshka_dims": ("8",)}
    make_options(data_dir="d", run_dir="r", encoder_size="tiny", cosine_weight=1.0, **heads)
