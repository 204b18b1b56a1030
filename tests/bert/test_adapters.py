"""Low-rank adapters: what is trained, what is written, what checkpoints hold."""

import numpy as np
import pytest
from tiny_bert import DIM, LAYERS, build_backbone, make_table, read_tensors, save_checkpoint
from train_options import SMALL, make_options, rewind

from dcse_tf.bert import bert
from dcse_tf.training import train as job

RANK = 3
IDS = [[2, 7, 9, 30, 3], [2, 5, 3]]


def encode(backbone) -> np.ndarray:
    return bert.build_bert_encoder(backbone)(make_table(IDS)).numpy()


def adapt():
    """A BERT of which only the adapters of the second layer are trained."""
    backbone = build_backbone()
    bert.freeze(backbone, 1, False)
    bert.add_adapters(backbone, RANK, seed=4)
    return backbone


def test_they_begin_as_nothing_and_the_same_for_a_seed():
    backbone, again = adapt(), adapt()
    names = [variable.path for variable in backbone.trainable_variables]
    assert len(names) == 2 * 2 * (LAYERS - 1)  # two factors, of queries and of values
    assert all("lora_kernel" in name and "transformer_layer_1" in name for name in names)
    np.testing.assert_array_equal(encode(backbone), encode(build_backbone()))
    first = [variable.numpy() for variable in backbone.trainable_variables]
    for one, other in zip(first, again.trainable_variables, strict=True):
        np.testing.assert_array_equal(one, other.numpy())
    assert any(np.ptp(one) > 0 for one in first)


def test_what_is_written_has_them_merged_in(tmp_path):
    backbone = adapt()
    before = encode(backbone)
    rng = np.random.default_rng(0)
    for variable in backbone.trainable_variables:
        variable.assign(rng.normal(scale=0.3, size=variable.shape))
    folder = save_checkpoint(tmp_path / "merged", backbone)
    plain = save_checkpoint(tmp_path / "plain", build_backbone())

    expected = encode(backbone)
    np.testing.assert_allclose(encode(bert.load_backbone(folder)), expected, atol=1e-5)
    assert np.abs(expected - before).max() > 0.01

    # W + A B, by hand, and nothing else.
    found, base = map(read_tensors, (folder, plain))
    changed = {name for name in base if not np.array_equal(base[name], found[name])}
    layer = "encoder.layer.1.attention.self"
    assert changed == {f"{layer}.query.weight", f"{layer}.value.weight"}
    dense = backbone.transformer_layers[1]._self_attention_layer.query_dense
    factors = dense.lora_kernel_a.numpy(), dense.lora_kernel_b.numpy()
    product = np.einsum("dhr,rk->dhk", *factors).reshape(DIM, DIM)
    name = f"{layer}.query.weight"
    np.testing.assert_allclose(found[name], base[name] + product.T, atol=1e-6)


@pytest.mark.slow
def test_a_run_is_resumed_from_checkpoints_of_the_adapters_alone(data_dir, tmp_path):
    def run(name):
        values = {**SMALL, "learning_rate": 0.01, "freeze_embeddings": False, "lora_rank": RANK}
        values |= {"data_dir": str(data_dir), "run_dir": str(tmp_path / name), "negatives": 3}
        job.train(make_options(**values))

    run("whole")
    run(rewind(tmp_path / "whole", 2).name)
    weights = [tmp_path / name / "encoder/model.safetensors" for name in ("whole", "whole-rewound")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    # Of two checkpoints; with all weights each would have them and two moments of each.
    files = (path for path in (tmp_path / "whole/checkpoints").rglob("*") if path.is_file())
    assert sum(path.stat().st_size for path in files) < 0.6 * weights[0].stat().st_size
