"""Scores a re-ranker's sequences with its ONNX export."""

import pathlib

import tensorflow as tf

from dcse_tf.encoder.onnx import INPUTS, OnnxFile

SEGMENTS, SPEAKERS, OUTPUT = "token_type_ids", "speaker_ids", "scores"
# Name of an input of the export -> name of the input from `SequenceModel.make_inputs`.
_PARTS = dict(
    zip((*INPUTS, SEGMENTS), ("token_ids", "padding_mask", "segment_ids"), strict=True),
    **{SPEAKERS: "speaker_ids"},
)


class OnnxScorer:
    """Runs an export with onnxruntime.

    Args:
        folder: the export's folder.
        speakers: whether the model takes speaker ids.

    Attributes:
        file: the model file.

    Raises:
        InputError: see `OnnxFile`.
    """

    def __init__(self, folder: pathlib.Path, speakers: bool):
        names = [name for name in _PARTS if speakers or name != SPEAKERS]
        self.file = OnnxFile(folder, names, OUTPUT, "a re-ranker")

    def score(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Logits, float32 `[pairs]`; see `SequenceScorer`. Graphs run it as a Python callback."""
        given = [inputs[_PARTS[name]] for name in self.file.inputs]
        return tf.ensure_shape(tf.numpy_function(self.file.run, given, tf.float32), [None])
