"""A small encoder that all formats are written from."""

import pathlib

import pytest
from tiny_bert import build_backbone, save_checkpoint

LENGTH = 12


@pytest.fixture(scope="session")
def bert(tmp_path_factory) -> pathlib.Path:
    """With activations of some size, since GELU has two forms, and an epsilon that can be seen."""
    from dcse_tf.bert.checkpoints import write_max_sequence_length

    backbone = build_backbone(epsilon=0.02)
    for layer in backbone.transformer_layers:
        kernel = layer._feedforward_intermediate_dense.kernel
        kernel.assign_add(9 * kernel)
    folder = save_checkpoint(tmp_path_factory.mktemp("bert") / "bert", backbone)
    write_max_sequence_length(folder, LENGTH)
    return folder
