"""A small random re-ranker as training leaves it."""

import json
import pathlib

import numpy as np
import reference
import safetensors.numpy
from tiny_bert import VOCABULARY

from dcse_tf.bert.bert import make_bert_config
from dcse_tf.reading.cross_encoder import PairHead
from dcse_tf.reading.matchers import build_matcher, write_matcher

LAYERS, DIM, WIDE, POSITIONS = 2, 64, 256, 128
EPSILON = 0.02  # other than BERT's own, and large enough to be seen
WITH_END = VOCABULARY.with_end_of_turn()
END = WITH_END.tokens.index("[EOT]")
FIRST_TOKENS, SECOND_TOKENS = 14, 6


def make_tensors(speakers: bool = False, seed: int = 3) -> dict[str, np.ndarray]:
    """Under the names of BertForSequenceClassification; large enough that scores differ."""
    rng = np.random.default_rng(seed)
    dense = {"classifier": (1, DIM), "bert.pooler.dense": (DIM, DIM)}
    norms = ["bert.embeddings"]
    for index in range(LAYERS):
        layer = f"bert.encoder.layer.{index}"
        own = ("self.query", "self.key", "self.value", "output.dense")
        dense |= {f"{layer}.attention.{name}": (DIM, DIM) for name in own}
        dense |= {f"{layer}.intermediate.dense": (WIDE, DIM), f"{layer}.output.dense": (DIM, WIDE)}
        norms += [f"{layer}.attention.output", f"{layer}.output"]
    tables = {"word": len(WITH_END.tokens), "position": POSITIONS, "token_type": 2}
    tables |= {"speaker": 2} if speakers else {}
    tensors = {
        f"bert.embeddings.{name}_embeddings.weight": rng.normal(size=(rows, DIM))
        for name, rows in tables.items()
    }
    for name, (outputs, inputs) in dense.items():
        tensors[f"{name}.weight"] = rng.normal(size=(outputs, inputs)) * 2 * inputs**-0.5
        tensors[f"{name}.bias"] = rng.normal(size=outputs) * 0.1
    for name in norms:
        tensors[f"{name}.LayerNorm.weight"] = 1 + 0.1 * rng.normal(size=DIM)
        tensors[f"{name}.LayerNorm.bias"] = 0.1 * rng.normal(size=DIM)
    return {name: value.astype(np.float32) for name, value in tensors.items()}


def expect_score(turns: list[str], response: str, speakers: list[int] | None = None) -> float:
    """By the reference; `speakers`, 0 or 1 for each turn, if the model knows who speaks."""
    ids = [[WITH_END.tokens.index(word) for word in text.split()] for text in (*turns, response)]
    ends = WITH_END.cls_id, WITH_END.sep_id, END
    who = speakers or [0] * len(turns)
    sequence = reference.pair_sequence(ids[:-1], who, ids[-1], FIRST_TOKENS, SECOND_TOKENS, *ends)
    return reference.cross_encoder(sequence, make_tensors(speakers is not None), 2, EPSILON)


def save_reranker(folder: pathlib.Path, speakers: bool = False, seed: int = 3) -> pathlib.Path:
    """Makes a run directory with a re-ranker in `encoder`; returns the run directory."""
    config = {
        **make_bert_config(LAYERS, DIM, len(WITH_END.tokens)),
        "architectures": ["BertForSequenceClassification"], "hidden_act": "gelu_pytorch_tanh",
        "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "intermediate_size": WIDE,
        "layer_norm_eps": EPSILON, "max_position_embeddings": POSITIONS,
        "num_attention_heads": 2,
    }  # fmt: skip
    encoder = _make_encoder(folder, config, "bert", speakers)
    safetensors.numpy.save_file(make_tensors(speakers, seed), encoder / "model.safetensors")
    return folder


def save_lstm_reranker(folder: pathlib.Path, architecture: str) -> pathlib.Path:
    """Like `save_reranker`, with a "dual_lstm" or "esim"."""
    config = {"model_type": architecture, "vocab_size": len(WITH_END.tokens)}
    encoder = _make_encoder(folder, config, architecture, False)
    matcher = build_matcher(architecture, len(WITH_END.tokens), 3, 10, 12)
    head = PairHead(0 if architecture == "dual_lstm" else 12, name="matching")
    head.build((None, matcher.pair_dim))
    write_matcher(encoder, matcher, head.weights)
    return folder


def _make_encoder(run: pathlib.Path, config: dict, architecture: str, speakers: bool):
    encoder = run / "encoder"
    encoder.mkdir(parents=True)
    settings = {"first_tokens": FIRST_TOKENS, "second_tokens": SECOND_TOKENS}
    settings |= {"architecture": architecture, "speakers": speakers}
    for name, values in {"config": config, "reranker": settings}.items():
        (encoder / f"{name}.json").write_text(json.dumps(values))
    WITH_END.write(encoder)
    return encoder
