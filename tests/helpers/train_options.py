"""Options of trainings for tests, of whichever task."""

import types

from dcse_tf.tasks.options import TrainOptions


def make_options(**values):
    """The options of the task that the values name, by default of the paper's."""
    return TrainOptions.from_dict(values)


def resolve(options, samples=1000, longest=50, truncated=0):
    """Resolved for a corpus of so many samples, of utterances of at most so many tokens."""
    given = types.SimpleNamespace(negatives=samples, most=1, scored=samples)
    split = types.SimpleNamespace(
        sessions=samples, utterances=samples, truncated_utterances=truncated, given=given
    )
    return options.resolve(
        types.SimpleNamespace(splits={"train": split}, max_sequence_length=longest)
    )
