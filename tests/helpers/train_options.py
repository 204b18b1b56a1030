"""Options of trainings for tests, of whichever task, and what a training leaves."""

import shutil
import types

from dcse_tf.tasks.train_options import TrainOptions

# A short training that is the same to the bit whenever it is taken.
SMALL = {
    "encoder_size": "tiny", "steps": 4, "global_batch_size": 8, "learning_rate": 1e-3,
    "log_every": 1, "save_every": 2, "eval_every": 4, "dev_samples": 0, "deterministic": True,
    "freeze_layers": 0, "decay": "constant", "warmup_steps": 1,
}  # fmt: skip


def make_options(**values):
    """The options of the task that the values name, by default of the paper's."""
    return TrainOptions.from_dict(values)


def tiny_options(**values):
    """The same, by default of a tiny encoder, a corpus in data and a run directory run."""
    return make_options(**{"data_dir": "data", "run_dir": "run", "encoder_size": "tiny", **values})


def make_manifest(samples=1000, longest=50, truncated=0):
    """What options read of a corpus of so many samples, of utterances of at most so many tokens."""
    given = types.SimpleNamespace(negatives=samples, most=1, scored=samples)
    split = types.SimpleNamespace(
        sessions=samples, utterances=samples, truncated_utterances=truncated, given=given
    )
    return types.SimpleNamespace(splits={"train": split, "dev": split}, max_sequence_length=longest)


def resolve(options, *corpus, **facts):
    """Resolved for the corpus that `make_manifest` makes of the other arguments."""
    return options.resolve(make_manifest(*corpus, **facts))


def rewind(run_dir, step):
    """Copies a run as a kill after `step` leaves it: without later checkpoints and its encoder."""
    copy = run_dir.with_name(f"{run_dir.name}-rewound")
    shutil.copytree(run_dir, copy, ignore=shutil.ignore_patterns("encoder"))
    for checkpoint in (copy / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)
    assert (copy / f"checkpoints/step-{step:09d}").exists()
    return copy


def read_scalars(run_dir):
    """What TensorBoard shows of a run: by name, without train/, the values in order."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    return {
        tag.removeprefix("train/"): [
            make_ndarray(event.tensor_proto).tolist() for event in events.Tensors(tag)
        ]
        for tag in events.Tags()["tensors"]
    }


def write_untrained(folder, **values):
    """Writes the encoder of a training without a step into a new folder; returns the training."""
    from dcse_tf.training.build import build_training

    training = build_training(make_options(run_dir="unused", **values))
    folder.mkdir(parents=True)
    training.setup.options.write_encoder(training, folder)
    return training
