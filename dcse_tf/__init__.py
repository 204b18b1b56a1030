"""DialogueCSE (EMNLP 2021) in TensorFlow 2 and Keras 3: sentence embeddings learnt from dialogues.

    encoder = dcse_tf.SentenceEncoder.load("run")
    embeddings = encoder.encode(["where is my parcel", "it left today"])

Importing the package starts no TensorFlow; the first use of `SentenceEncoder` does, as do the jobs
in `dcse_tf.cli` when they run.
"""

import typing

if typing.TYPE_CHECKING:
    from dcse_tf.encoder.sentence_encoder import SentenceEncoder

__version__ = "0.1.0"
__all__ = ["SentenceEncoder", "__version__"]


def __getattr__(name: str) -> object:
    if name == "SentenceEncoder":
        from dcse_tf.encoder.sentence_encoder import SentenceEncoder

        return SentenceEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
