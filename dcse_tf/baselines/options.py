"""Settings of `fit_baseline`."""

import dataclasses

from dcse_tf.encoder.options import EncoderOptions
from dcse_tf.options import OptionError, option, show

BASELINES = ("whitening", "flow", "word_vectors")
# Settings that only some kinds have.
_OF_KINDS = {
    "encoder": ("whitening", "flow"),
    "data_dir": ("whitening", "flow"),
    "pooling": ("whitening", "flow"),
    "max_sequence_length": ("whitening", "flow"),
    "max_sentences": ("whitening", "flow"),
    "batch_tokens": ("whitening", "flow"),
    "seed": ("whitening", "flow"),
    "dimensions": ("whitening",),
    "depth": ("flow",),
    "hidden_dim": ("flow",),
    "steps": ("flow",),
    "batch_size": ("flow",),
    "learning_rate": ("flow",),
    "word_vectors": ("word_vectors",),
    "word_index": ("word_vectors",),
    "word_unit": ("word_vectors",),
}
_NEEDED = {
    "whitening": ("encoder", "data_dir"),
    "flow": ("encoder", "data_dir"),
    "word_vectors": ("word_vectors",),
}


@dataclasses.dataclass(frozen=True)
class FitBaselineOptions(EncoderOptions):
    """Fits one of the paper's untrained baselines, and writes it as an encoder like any other."""

    kind: str | None = option(
        None,
        "whitening: embeddings to zero mean and identity covariance (Su et al. 2021); flow: to a "
        "Gaussian by an invertible network fitted by maximum likelihood (BERT-flow, Li et al. "
        "2020); word_vectors: the mean of the words' vectors, without an encoder. Plain BERT needs "
        "no fitting: evaluate `model`=CHECKPOINT `pooling`=mean or cls.",
        choices=BASELINES,
        required=True,
    )
    encoder: str = option(
        "",
        "whitening, flow: the checkpoint whose embeddings are taken: a folder, a hub name, "
        "package:NAME or a run directory. It is not trained.",
        reads=True,
    )
    data_dir: str = option(
        "",
        "whitening, flow: folder that prepare_data wrote with the encoder's vocabulary; fitted to "
        "the distinct utterances of its train split.",
        reads=True,
    )
    output_dir: str = option(
        "",
        "Folder to write, for `model` of evaluate and embed; it appears only when it is complete.",
        required=True,
        writes=True,
    )
    max_sentences: int = option(
        100_000,
        "whitening, flow: most distinct utterances, drawn by `seed`. 0: all. Memory: their "
        "embeddings (100,000 x 768 dimensions: 307 MB).",
        minimum=0,
    )
    batch_tokens: int = option(
        2048, "whitening, flow: tokens encoded at a time, padding counted.", minimum=1
    )
    dimensions: int = option(
        0,
        "whitening: dimensions kept, those of largest variance. 0: all in which the embeddings "
        "vary.",
        minimum=0,
    )
    depth: int = option(
        16, "flow: steps of normalisation, permutation and coupling, one behind another.", minimum=1
    )
    hidden_dim: int = option(
        256,
        "flow: width of the two hidden layers of a coupling's network.",
        minimum=1,
    )
    steps: int = option(1000, "flow: optimizer steps (Adam).", minimum=1)
    batch_size: int = option(256, "flow: embeddings a step.", minimum=1)
    learning_rate: float = option(1e-3, "flow: learning rate, constant.", minimum=0.0)
    word_vectors: str = option(
        "",
        "word_vectors: the file: GloVe text, word2vec text or .bin, .json ({word: [numbers]}), or "
        ".npz (one array [words, dim], with `word_index`).",
        files=True,
    )
    word_index: str = option(
        "",
        "word_vectors from .npz: JSON file that gives each word its row ({word: row}).",
        files=True,
    )
    word_unit: str = option(
        "words",
        "word_vectors: what has a vector: words (runs of letters and digits; of texts with Chinese "
        "characters jieba's words) or characters (Latin words and numbers are whole).",
        choices=("words", "characters"),
    )
    seed: int = option(
        0, "whitening, flow: seed of the utterances drawn, and of the flow.", minimum=0
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.kind
        for name in _NEEDED[self.kind]:
            if not getattr(self, name):
                raise OptionError(f"`kind`={self.kind} needs `{name}`")
        for field in dataclasses.fields(self):
            value, kinds = getattr(self, field.name), _OF_KINDS.get(field.name, BASELINES)
            if self.kind not in kinds and value != field.default:
                raise OptionError(
                    f"`{field.name}`={show(value)} has no meaning with `kind`={self.kind}, only "
                    f"with {' and '.join(kinds)}"
                )
        if self.word_vectors and self.word_vectors.endswith(".npz") != bool(self.word_index):
            raise OptionError("`word_index` goes with `word_vectors`=FILE.npz, and only with it")
