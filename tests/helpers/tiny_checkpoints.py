"""Checkpoints of other architectures with random weights, as HuggingFace writes them."""

import io
import json
import pathlib
from collections.abc import Iterable

import numpy as np
import safetensors.numpy
import sentencepiece
import tokenizers
import tokenizers.models
import tokenizers.pre_tokenizers
import tokenizers.processors
import tokenizers.trainers
from tiny_bert import DIM, LAYERS, VOCABULARY, VOCABULARY_SIZE, make_table

from dcse_tf.bert import bert, weights
from dcse_tf.bert.checkpoints import read_config
from dcse_tf.bert.fused_bert import FusedBert
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.corpus import PrepareOptions
from dcse_tf.data.prepare import prepare

POSITIONS = 140
_BOTH = {
    "vocab_size": VOCABULARY_SIZE, "max_position_embeddings": POSITIONS, "layer_norm_eps": 1e-5,
    "num_hidden_layers": LAYERS, "num_attention_heads": 2, "hidden_size": DIM,
    "intermediate_size": 128, "hidden_act": "gelu", "pad_token_id": 1,
}  # fmt: skip
ROBERTA = {**_BOTH, "type_vocab_size": 1}
MPNET = {**_BOTH, "relative_attention_num_buckets": 32}
# As they stand in MPNet's file.
MPNET_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "[UNK]", *VOCABULARY.tokens[5:-1], "<mask>")
DISTILBERT = {
    "vocab_size": VOCABULARY_SIZE, "max_position_embeddings": POSITIONS, "n_layers": LAYERS,
    "n_heads": 2, "dim": DIM, "hidden_dim": 128, "activation": "gelu",
}  # fmt: skip
# BERT's names of tensors as the others have them, by hand.
_NAMES = {
    "distilbert": {
        "encoder.layer.": "transformer.layer.", "attention.self.query": "attention.q_lin",
        "attention.self.key": "attention.k_lin", "attention.self.value": "attention.v_lin",
        "attention.output.dense": "attention.out_lin",
        "attention.output.LayerNorm": "sa_layer_norm", "intermediate.dense": "ffn.lin1",
        ".output.dense": ".ffn.lin2", ".output.LayerNorm": ".output_layer_norm",
    },
    "mpnet": {
        "attention.self.query": "attention.attn.q", "attention.self.key": "attention.attn.k",
        "attention.self.value": "attention.attn.v", "attention.output.dense": "attention.attn.o",
        "attention.output.LayerNorm": "attention.LayerNorm",
    },
}  # fmt: skip


def encode_both(folder: pathlib.Path, ids: list[int]) -> list[np.ndarray]:
    """A text's token embeddings by a checkpoint, fused and as it is trained."""
    config = read_config(folder)
    fused = FusedBert(weights.read_bert_tensors(folder, config), config)
    both = fused, bert.build_bert_encoder(bert.load_backbone(folder))
    return [encoder(make_table([ids]))[0].numpy() for encoder in both]


def write_weights(
    folder: pathlib.Path, kind: str, prefix: str = "", entries: int = VOCABULARY_SIZE
) -> dict[str, np.ndarray]:
    """Writes config.json and random weights; returns them as the tensors of a BERT."""
    rng = np.random.default_rng(5)
    shapes = {
        "embeddings.word_embeddings.weight": (entries, DIM),
        "embeddings.position_embeddings.weight": (POSITIONS, DIM),
        "embeddings.token_type_embeddings.weight": (1, DIM),
        "embeddings.LayerNorm.weight": (DIM,),
        "embeddings.LayerNorm.bias": (DIM,),
    }
    for layer in range(LAYERS):
        sizes = {
            "attention.self.query": (DIM, DIM), "attention.self.key": (DIM, DIM),
            "attention.self.value": (DIM, DIM), "attention.output.dense": (DIM, DIM),
            "attention.output.LayerNorm": (DIM,), "intermediate.dense": (128, DIM),
            "output.dense": (DIM, 128), "output.LayerNorm": (DIM,),
        }  # fmt: skip
        for part, shape in sizes.items():
            shapes[f"encoder.layer.{layer}.{part}.weight"] = shape
            shapes[f"encoder.layer.{layer}.{part}.bias"] = shape[:1]
    tensors = {
        name: rng.normal(scale=0.3, size=shape).astype(np.float32) + name.endswith("Norm.weight")
        for name, shape in shapes.items()
    }
    if kind == "mpnet":
        bias = rng.normal(scale=2.0, size=(32, 2)).astype(np.float32)
        tensors["encoder.relative_attention_bias.weight"] = bias
    written = {}
    for name, tensor in tensors.items():
        for ours, theirs in _NAMES.get(kind, {}).items():
            name = name.replace(ours, theirs)
        written[prefix + name] = np.ascontiguousarray(tensor, np.float32)
    if kind in ("distilbert", "mpnet"):
        del written[f"{prefix}embeddings.token_type_embeddings.weight"]
        tensors["embeddings.token_type_embeddings.weight"] *= 0
    safetensors.numpy.save_file(written, folder / "model.safetensors")
    if kind in ("roberta", "xlm-roberta", "mpnet"):
        places = "embeddings.position_embeddings.weight"  # counted from behind the padding's
        tensors[places] = tensors[places][2:]
    config = {"distilbert": DISTILBERT, "mpnet": MPNET}.get(kind, ROBERTA)
    (folder / "config.json").write_text(
        json.dumps({**config, "vocab_size": entries, "model_type": kind})
    )
    return {name: np.float64(t) for name, t in tensors.items()}


def write_mpnet_vocabulary(folder: pathlib.Path) -> None:
    """Writes MPNet's files of a vocabulary of `VOCABULARY_SIZE` entries."""
    (folder / "vocab.txt").write_text("\n".join(MPNET_TOKENS) + "\n")
    settings = {"do_lower_case": True, "tokenizer_class": "MPNetTokenizer", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def train_byte_pairs(folder: pathlib.Path, texts: Iterable[str], size: int) -> None:
    """Writes a tokenizer.json of at most so many byte pairs as RoBERTa has one."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def train_pieces(folder: pathlib.Path, texts: Iterable[str], size: int) -> None:
    """Writes a SentencePiece model of at most so many pieces as XLM-R has one."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(list(texts)), model_writer=written, vocab_size=size,
        hard_vocab_limit=False, character_coverage=1.0, normalization_rule_name="nmt_nfkc",
        minloglevel=2, num_threads=1,
    )  # fmt: skip
    (folder / "sentencepiece.bpe.model").write_bytes(written.getvalue())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')


def save_start(
    folder: pathlib.Path, kind: str, texts: Iterable[str] = (), size: int = 400
) -> pathlib.Path:
    """Makes a folder of random weights and, of at most `size` subwords of texts, a vocabulary."""
    folder.mkdir()
    if kind == "distilbert":
        VOCABULARY.write(folder)
    elif kind == "mpnet":
        write_mpnet_vocabulary(folder)
    else:
        train = train_byte_pairs if kind == "roberta" else train_pieces
        train(folder, texts, size)
    write_weights(folder, kind, entries=len(read_vocabulary(folder).tokens))
    return folder


def prepare_for(
    start: pathlib.Path, dialogues: pathlib.Path, folder: pathlib.Path, prefix: str = "", longest=16
) -> pathlib.Path:
    """Prepares dialogues for a checkpoint, into `folder / "data"`."""
    options = PrepareOptions(
        format="jsonl", input=(str(dialogues),), output_dir=str(folder / "data"), vocab=str(start),
        prefix=prefix, max_sequence_length=longest, dev_fraction=0.2, test_fraction=0.2,
    )  # fmt: skip
    prepare(options)
    return folder / "data"
