"""A re-ranker's ONNX export as what scores its sequences."""

import pathlib

import tensorflow as tf

from dcse_tf.encoder.onnx import INPUTS, OnnxFile

SEGMENTS, SPEAKERS, OUTPUT = "token_type_ids", "speaker_ids", "scores"
# By the export's inputs, the parts of what `SequenceModel.make_inputs` gives.
_PARTS = dict(
    zip((*INPUTS, SEGMENTS), ("token_ids", "padding_mask", "segment_ids"), strict=True),
    **{SPEAKERS: "speaker_ids"},
)


class OnnxScorer:
    """Runs an export by onnxruntime.

    Args:
        folder: of the export.
        speakers: whether it knows who speaks.

    Attributes:
        file: what computes.

    Raises:
        InputError: onnxruntime is not installed, or the model is damaged or of something else.
    """

    def __init__(self, folder: pathlib.Path, speakers: bool):
        names = [name for name in _PARTS if speakers or name != SPEAKERS]
        self.file = OnnxFile(folder, names, OUTPUT, "a re-ranker")

    def score(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Logits, float32 `[pairs]`; see `SequenceScorer`. A graph calls back for it."""
        given = [inputs[_PARTS[name]] for name in self.file.inputs]
        return tf.ensure_shape(tf.numpy_function(self.file.run, given, tf.float32), [None])
