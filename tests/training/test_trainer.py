import functools

import numpy as np
import pytest
import reference
import tensorflow as tf
from encoded_tables import build_masked_lm
from tiny_bert import build_backbone, make_table
from train_options import make_options

from dcse_tf.bert import bert
from dcse_tf.bert import weights as bert_weights
from dcse_tf.options import OptionError
from dcse_tf.tasks.objective import average
from dcse_tf.training.build import build_training
from dcse_tf.training.trainer import (
    WarmupDecay,
    build_optimizer,
    divide_cpu,
    make_strategy,
    seed_dropout,
)

pytestmark = pytest.mark.slow


def _build(data_dir, task, devices, **changes):
    """A training on so many devices."""
    settings = {
        "task": task, "data_dir": str(data_dir), "encoder_size": "tiny", "run_dir": "unused",
        "steps": 4, "global_batch_size": 8, "negatives": 3, "learning_rate": 1e-3,
        "dropout": 0.0, "freeze_layers": 1, "freeze_embeddings": task == "dialogue_cse",
        "warmup_steps": 2, "decay": "linear",
    }  # fmt: skip
    if task in ("mlm", "simcse"):
        del settings["negatives"]
    options = make_options(**{**settings, **changes})
    training = build_training(options, strategy=make_strategy(devices, deterministic=False))
    # From BERT's 0.02 so small a model is saturated; from this it learns.
    weights = training.setup.backbone.trainable_variables
    bert.initialize_weights(weights, options.seed, stddev=0.05)
    return training


def _first_gradients(training):
    batch, trainer = next(training.batches()), training.trainer

    def compute(batch):
        return trainer.strategy.run(lambda b: trainer.compute_gradients(b)[0], args=(batch,))

    if trainer.strategy.num_replicas_in_sync > 1:
        # Eager replicas may reach their collectives in any order.
        compute = tf.function(compute)
    gradients = compute(batch)
    return [trainer.strategy.experimental_local_results(g)[0].numpy() for g in gradients]


@pytest.fixture(scope="module")
def gradients(data_dir):
    """A function of a task, devices and settings, which computes the gradients of each once."""

    @functools.cache
    def run(task, devices=1, **changes):
        return _first_gradients(_build(data_dir, task, devices, **changes))

    return run


@pytest.mark.parametrize(("task", "change"), [
    *((task, {"devices": 2}) for task in ("dialogue_cse", "mlm", "siamese_multi", "simcse")),
    *((task, {"layout": "padded"}) for task in ("dialogue_cse", "mlm")),  # by default packed
])  # fmt: skip
def test_neither_two_devices_nor_the_layout_change_a_gradient(gradients, task, change):
    for first, second in zip(gradients(task), gradients(task, **change), strict=True):
        np.testing.assert_allclose(first, second, atol=2e-5 * max(1.0, np.abs(first).max()))


def test_two_devices_take_the_steps_of_one(data_dir):
    one, two = (_build(data_dir, "dialogue_cse", devices) for devices in (1, 2))
    metrics = [training.trainer.train(training.batches(), 3) for training in (one, two)]
    for name in ("loss", "accuracy", "gradient_norm", "samples"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], rel=1e-3), name
    assert metrics[0]["samples"] == 24.0
    weights = [training.model.get_weights() for training in (one, two)]
    for first, second in zip(*weights, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-4)


def test_a_cpu_that_has_computed_can_no_longer_be_divided():
    tf.constant(1)
    divide_cpu(2)  # as it is already
    with pytest.raises(OptionError, match="`logical_cpus`=3: TensorFlow has already computed"):
        divide_cpu(3)


def test_the_metrics_of_a_term_are_averaged_by_its_weight():
    """A step without a row that counts says nothing of its accuracy."""
    sums = {"loss": 3.0, "samples": 8.0, "/accuracy": 3.0, "/weight": 4.0}
    sums |= {"pairs/accuracy": 1.0, "pairs/weight": 2.0, "tokens/loss": 0.0, "tokens/weight": 0.0}
    assert average(sums) == {"accuracy": 0.75, "pairs_accuracy": 0.5}


def _mask_states(trainer, seed, step):
    """The states of all dropouts of every replica after they are set, one list a replica."""

    @tf.function
    def draw():
        seed_dropout(trainer.model, seed, step)
        layers = trainer.model._flatten_layers()
        found = [getattr(layer, "seed_generator", None) for layer in layers]
        return tf.stack([generator.state.value for generator in found if generator is not None])

    replicas = trainer.strategy.experimental_local_results(trainer.strategy.run(draw))
    return [[tuple(state) for state in states.numpy().tolist()] for states in replicas]


def test_seed_step_layer_and_replica_decide_the_dropout_masks(data_dir):
    trainer = _build(data_dir, "dialogue_cse", 2, dropout=0.1).trainer
    draws = {(seed, step): _mask_states(trainer, seed, step) for seed in (0, 1) for step in (0, 1)}
    for key, states in draws.items():
        assert _mask_states(trainer, *key) == states  # whatever was drawn between
    every = [state for replicas in draws.values() for states in replicas for state in states]
    # Two seeds, two steps, two replicas; of a layer the attention's dropout, its output's and the
    # feed-forward network's, and the embeddings' one.
    assert len(set(every)) == len(every) == 2 * 2 * 2 * (2 * 3 + 1)


def test_steps_are_the_same_whether_a_run_was_resumed_before_them(data_dir):
    """Those of a training that has drawn other masks since, and whose state is put back."""
    training = _build(data_dir, "dialogue_cse", 1, dropout=0.3)
    trainer, train = training.trainer, training.trainer.train
    # All but the states of the dropouts, which a checkpoint need not have.
    every = (*trainer.model.variables, *trainer.optimizer.variables)
    variables = [variable for variable in every if "seed_generator" not in variable.path]
    train(training.batches(), 2)
    saved = [variable.numpy() for variable in variables]
    train(training.batches(2), 2)
    straight = [variable.numpy() for variable in variables]

    for variable, value in zip(variables, saved, strict=True):
        variable.assign(value)
    train(training.batches(2), 2)
    for found, expected in zip(variables, straight, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_gradient_is_clipped_after_it_is_averaged_and_a_metric_is_a_mean_over_rows(data_dir):
    training = _build(data_dir, "dialogue_cse", 1, clip_norm=1e-12, learning_rate=1.0)
    trainer, batches = training.trainer, training.batches()
    trainer.optimizer.weight_decay = None
    before = [v.numpy() for v in trainer.model.trainable_variables]
    apart = [trainer.train(batches, 1) for _ in range(4)]
    assert apart[0]["gradient_norm"] > 1e-3
    # Adam divides by the gradient's size + 1e-6, so a gradient of norm 1e-12 moves nothing much.
    for variable, old in zip(trainer.model.trainable_variables, before, strict=True):
        np.testing.assert_allclose(variable.numpy(), old, atol=1e-4)
        variable.assign(old)
    together = trainer.train(training.batches(), 4)
    assert together["loss"] == pytest.approx(np.mean([m["loss"] for m in apart]), rel=1e-5)
    assert together["tokens"] == sum(m["tokens"] for m in apart)


def test_a_loss_that_diverges_ends_the_steps_of_which_is_told(data_dir, monkeypatch):
    monkeypatch.setattr("dcse_tf.training.trainer.LOSS_LIMIT", 0.0)
    training = _build(data_dir, "dialogue_cse", 1)
    metrics = training.trainer.train(training.batches(), 4)
    assert (metrics["steps"], metrics["diverged"]) == (1, 1)


def test_bfloat16_keeps_weights_similarity_and_loss_in_float32(data_dir):
    full = _build(data_dir, "dialogue_cse", 1)
    half = _build(data_dir, "dialogue_cse", 1, compute_dtype="bfloat16")
    assert {v.dtype for v in half.model.trainable_variables} == {"float32"}
    batch = next(half.batches())
    outputs = half.model(batch, training=False)
    assert outputs["/positive_similarity"].dtype == outputs["loss"].dtype == tf.float32
    exact = full.model(batch, training=False)["/positive_similarity"]
    assert float(np.abs(outputs["/positive_similarity"] - exact)) / 8 < 0.02  # it has 8 bits
    # Some similarities are so near to 1 that they differ by nothing; embeddings do.
    rows = [np.float32(each.setup.encoder(make_table([[2, 7, 9, 3]]))) for each in (full, half)]
    assert 1e-3 < np.abs(np.subtract(*rows)).max() < 0.1


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_nothing_below_the_lowest_trained_layer_is_differentiated(data_dir, layout):
    """What the backward pass takes from the forward pass, and so keeps, is of trained layers."""
    training = _build(data_dir, "dialogue_cse", 1, layout=layout)
    batch = next(training.batches())
    compute, run = training.trainer.compute_gradients, training.trainer.strategy.run
    graph = tf.function(lambda each: run(compute, [each])).get_concrete_function(batch).graph
    backward = [op for op in graph.get_operations() if op.name.startswith("gradient_tape/")]
    taken = {
        source.op.name
        for op in backward
        for source in op.inputs
        if not source.op.name.startswith("gradient_tape/")
    }
    of_layer = [[name for name in taken if f"transformer_layer_{i}" in name] for i in (0, 1)]
    assert of_layer[1]
    # Of the frozen layer only its output, which the trained one reads, and shapes.
    kept = [n for n in of_layer[0] if not n.rpartition("/")[2].startswith(("Shape", "strided"))]
    assert all("feedforward_layer_norm" in name for name in kept), kept
    assert not any("transformer_layer_0" in op.name for op in backward)


def test_steps_are_adamw_that_decays_no_bias_and_no_norm():
    """Three steps of the optimizer of a training, on all weights of a BERT and its head."""
    backbone = build_backbone()
    _, head = build_masked_lm(backbone, 0)
    pairs = [*bert_weights.backbone_weights(backbone), *bert_weights.masked_lm_head_weights(head)]
    variables = [pair.variable for pair in pairs]
    before = [np.float64(variable) for variable in variables]
    rng = np.random.default_rng(0)
    signs = [[rng.choice([-1.0, 1.0], size=v.shape) for v in variables] for _ in range(3)]
    steps = [[np.float32(s * rng.uniform(0.5, 1.5, s.shape)) for s in step] for step in signs]

    optimizer = build_optimizer(WarmupDecay(1e-2, 2, "constant", 10), weight_decay=0.5)
    optimizer.build(variables)
    for gradients in steps:
        optimizer.apply([tf.constant(gradient) for gradient in gradients], variables)

    for place, pair in enumerate(pairs):
        plain = "LayerNorm" in pair.name or pair.name.endswith("bias")
        drawn = [np.float64(gradients[place]) for gradients in steps]
        # The warm-up's first step has half of the rate.
        expected = reference.adamw(before[place], drawn, [5e-3, 1e-2, 1e-2], 0.0 if plain else 0.5)
        np.testing.assert_allclose(pair.variable, expected, atol=1e-6, err_msg=pair.name)


@pytest.mark.parametrize(
    ("decay", "step", "expected"),
    [
        ("constant", 0, 0.25e-3),  # (0 + 1) / 4 of the peak
        ("constant", 3, 1e-3),
        ("constant", 99_999, 1e-3),
        ("linear", 4, 1e-3),
        ("linear", 52, 0.5e-3),  # halfway between the warm-up's end and step 100
        ("linear", 100, 0.0),
        ("exponential", 10_003, 1e-3),
        ("exponential", 10_004, 0.98e-3),
        ("exponential", 10_000_000, 1e-5),  # the floor
    ],
)
def test_learning_rate(decay, step, expected):
    schedule = WarmupDecay(1e-3, 4, decay, 100)
    assert float(schedule(step)) == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_a_peak_below_the_floor_is_kept():
    assert float(WarmupDecay(5e-6, 0, "exponential", 10)(10_000_000)) == pytest.approx(5e-6)
