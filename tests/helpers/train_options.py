"""Options of trainings for tests, of whichever task."""

import types

from dcse_tf.tasks.train_options import TrainOptions


def make_options(**values):
    """The options of the task that the values name, by default of the paper's."""
    return TrainOptions.from_dict(values)


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
