"""A small encoder and small re-rankers that all formats are written from."""

import pathlib

import pytest
from tiny_bert import build_backbone, save_checkpoint
from tiny_reranker import save_reranker

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


@pytest.fixture(scope="session")
def rerankers(tmp_path_factory) -> dict[bool, pathlib.Path]:
    """Run directories, by whether the model knows who speaks."""
    folder = tmp_path_factory.mktemp("rerankers")
    return {known: save_reranker(folder / str(known), known) for known in (False, True)}
