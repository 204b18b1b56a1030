"""The jobs as functions, for notebooks and other programs.

Their keyword arguments have the names of the command line's flags. Errors name them in backticks.
"""

import contextlib
import dataclasses
import logging
import numbers
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dcse_tf import progress
from dcse_tf.cli.flags import find_files, list_fields, plain_type, read_flags
from dcse_tf.data.options import PrepareOptions
from dcse_tf.errors import name_missing_tensorflow
from dcse_tf.evaluation.options import ChangesOptions, EvaluateOptions
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.options import OptionError, Options, show
from dcse_tf.search.search_options import EmbedOptions
from dcse_tf.staging import stage
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.training.merge_options import MergeOptions

if TYPE_CHECKING:
    from dcse_tf.data.manifest import Manifest
    from dcse_tf.evaluation.report import Result
    from dcse_tf.inspecting.changes import Changes
    from dcse_tf.spark.embed import Embedded
    from dcse_tf.training.hooks import Outcome
    from dcse_tf.training.merge import Merged

T = TypeVar("T", bound=Options)

_EXPECTED = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}


def prepare_data(*, preset: str | Sequence[str] = (), **options: Any) -> "Manifest":
    """Converts dialogue files to tokenised, sharded records for `train`.

        dcse_tf.prepare_data(
            format="jsonl", input="dialogues.jsonl", vocab_size=8000, output_dir="data"
        )

    Args:
        preset: name of a preset, or several, of which later ones win; `dcse presets` lists them.
        **options: the flags of `dcse prepare_data --help`. Files may be text or paths, one or a
            list.

    Returns:
        The manifest of the folder: `splits` has the numbers of sessions, utterances and tokens,
        `dropped` counts what was left out.

    Raises:
        OptionError: an option is unknown, missing or out of range, or contradicts another.
        InputError: an input cannot be read, has too many bad lines, or has no training session.
        FileExistsError: the output exists, without `overwrite`.
    """
    read = make_options(PrepareOptions, "prepare_data", preset, options)
    with _work_on("prepare_data", read) as staged:
        from dcse_tf.spark import prepare as job

        return job.prepare_data(staged)


def train(*, preset: str | Sequence[str] = (), **options: Any) -> "Outcome | None":
    """Trains a sentence encoder on a corpus from `prepare_data`, or resumes a run.

        outcome = dcse_tf.train(
            preset="recommended", data_dir="data", encoder="bert-base-uncased", run_dir="run"
        )
        print(outcome.scores, outcome.kept.describe())
        encoder = dcse_tf.SentenceEncoder.load("run")

    Args:
        preset: name of a preset, or several, of which later ones win; `dcse presets` lists them.
        **options: the flags of `dcse train --help`; `task` is the training task.

    Returns:
        `scores` has the dev scores of the last step; `kept` is the best step, whose encoder the
        run directory holds. With several workers, None on all but the first.

    Raises:
        OptionError: an option is unknown, missing or out of range, contradicts another, or differs
            from those that the run was started with.
        InputError: the data or the checkpoint cannot be used.
        TrainingError: the loss diverged.
        LockedError: another process is working in the run directory.
        Stopped: a signal, such as Ctrl-C, stopped the run; the same call resumes it.
    """
    read = make_options(TrainOptions, "train", preset, options)
    with _work_on("train", read) as staged:
        from dcse_tf.training import job

        return job.train(staged)


def evaluate(*, preset: str | Sequence[str] = (), **options: Any) -> "list[Result]":
    """Scores a sentence encoder on retrieval, STS and response selection sets.

        results = dcse_tf.evaluate(model="run", response_selection="data/test.jsonl")
        for result in results:
            print(result.task, result.source, result.scores)

    Args:
        preset: name of a preset, or several, of which later ones win; `dcse presets` lists them.
        **options: the flags of `dcse evaluate --help`.

    Returns:
        A result for each set and scoring method, with its `scores` in percent, their 95%
        confidence `intervals`, and the scores of each query, pair or sample in `items`.

    Raises:
        OptionError: an option is unknown, missing or out of range, or contradicts another.
        InputError: the model or a set cannot be used.
        OutputError: the results cannot be written to `output`.
    """
    read = make_options(EvaluateOptions, "evaluate", preset, options)
    with _work_on("evaluate", read) as staged:
        from dcse_tf.evaluation import job

        return job.evaluate(staged)


def embed(*, preset: str | Sequence[str] = (), **options: Any) -> "Embedded":
    """Embeds the sentences of a file, which may be larger than memory, or resumes such a job.

        embedded = dcse_tf.embed(model="run", input="sentences.txt", output="embeddings.npy")
        rows = np.load(embedded.path, mmap_mode="r")  # float32 [lines, dim]

    For texts in memory, use `SentenceEncoder.encode`.

    Args:
        preset: name of a preset, or several, of which later ones win; `dcse presets` lists them.
        **options: the flags of `dcse embed --help`.

    Returns:
        The path of the file written, its number of rows, and their dimension.

    Raises:
        OptionError: an option is unknown, missing or out of range, or contradicts another.
        InputError: the model or the input cannot be used, or the interrupted job to resume had
            other settings.
        FileExistsError: the output exists, without `overwrite`.
        LockedError: another process is writing it.
        OutputError: it cannot be written.
    """
    read = make_options(EmbedOptions, "embed", preset, options)
    with _work_on("embed", read) as staged:
        from dcse_tf.spark import embed as job

        return job.embed(staged)


def merge(*, preset: str | Sequence[str] = (), **options: Any) -> "Merged":
    """Averages an encoder's weights from before and after training, or centres an encoder.

        merged = dcse_tf.merge(start="bert", trained="run", share=0.5, output_dir="merged")
        merged = dcse_tf.merge(
            start="bert", trained="run", share="auto", data_dir="data", output_dir="chosen"
        )
        print(merged.share, merged.choice.reason)

    Args:
        preset: name of a preset, or several, of which later ones win; `dcse presets` lists them.
        **options: the flags of `dcse merge --help`.

    Returns:
        The folder written, the share and, with `share="auto"`, how it was chosen.

    Raises:
        OptionError: an option is unknown, missing or out of range, or contradicts another.
        InputError: an encoder or the corpus cannot be used, or the encoders differ in architecture
            or vocabulary.
        FileExistsError: the output exists, without `overwrite`.
    """
    read = make_options(MergeOptions, "merge", preset, options)
    with _work_on("merge", read) as staged:
        from dcse_tf.training import merge as job

        return job.merge(staged)


def changes(*, preset: str | Sequence[str] = (), **options: Any) -> "Changes":
    """Compares two encoders on held-out dialogues, without labels.

        found = dcse_tf.changes(before="bert", after="run", data_dir="data")
        print(found.kept, found.mean_cosine, [moved.sentence for moved in found.moved])

    Args:
        preset: name of a preset, or several, of which later ones win; `dcse presets` lists them.
        **options: the flags of `dcse changes --help`.

    Returns:
        Response selection scores of both encoders, the share of nearest neighbours kept, and
        further measures of change.

    Raises:
        OptionError: an option is unknown, missing or out of range, or contradicts another.
        InputError: an encoder or the corpus cannot be used.
        FileExistsError: the output exists, without `overwrite`.
    """
    read = make_options(ChangesOptions, "changes", preset, options)
    with _work_on("changes", read) as staged:
        from dcse_tf.inspecting import changes_job

        return changes_job.show_changes(staged)


def export(*, preset: str | Sequence[str] = (), **options: Any) -> pathlib.Path:
    """Exports an encoder or re-ranker, such as to SavedModel, sentence-transformers or ONNX.

        folder = dcse_tf.export(run_dir="run", output_dir="exported", format="saved_model")

    Args:
        preset: name of a preset, or several, of which later ones win; `dcse presets` lists them.
        **options: the flags of `dcse export --help`.

    Returns:
        The folder written: `output_dir` or, with `versioned`, its new version.

    Raises:
        OptionError: an option is unknown, missing or out of range, or contradicts another.
        InputError: there is nothing to export, or a file for the model card cannot be used.
        FileExistsError: the output exists, without `overwrite`.
        OutputError: the export cannot be written, or its outputs differ from the model's.
    """
    read = make_options(ExportOptions, "export", preset, options)
    with _work_on("export", read) as staged:
        from dcse_tf.exporting import job

        return job.export(staged)


@contextlib.contextmanager
def _work_on(job: str, options: T) -> Iterator[T]:
    """Yields a job's options with local files (see `stage`), and shows log messages meanwhile."""
    with _visible(), stage(options) as staged, name_missing_tensorflow(job):
        yield staged


def _visible() -> contextlib.AbstractContextManager[None]:
    """Shows log messages, unless the program has configured logging itself."""
    # absl adds a handler with the basic format to a root logger that has none.
    formats = (getattr(handler.formatter, "_fmt", "") for handler in logging.root.handlers)
    own = any(form != logging.BASIC_FORMAT for form in formats)
    return contextlib.nullcontext() if own else progress.show_log()


def make_options(
    kind: type[T], job: str, preset: str | Sequence[str], given: Mapping[str, Any]
) -> T:
    """Builds a job's options from presets and keyword arguments; the latter take precedence.

    Args:
        kind: the class of the options.
        job: the job's name, as in presets.
        preset: one preset's name or several.
        given: option name -> value; None counts as not given. Options for several files take one
            file or an iterable; files may be text or paths. Likewise for several numbers or names.

    Raises:
        OptionError: an option is unknown, of the wrong type, missing or out of range, or
            contradicts another.
        InputError: a file does not exist.
    """
    names = [preset] if isinstance(preset, str) else list(preset)
    values = read_flags(kind, job, [f"--preset={name}" for name in names])
    fields = {field.name: field for field in list_fields(kind)}
    for name, value in given.items():
        if value is not None:
            values[name] = _convert(fields[name], value) if name in fields else value
    options = kind.from_dict(values)
    find_files(options)
    return options


def _convert(field: dataclasses.Field, value: Any) -> Any:
    """Converts a value to the type of its option.

    Raises:
        OptionError: the value has the wrong type.
    """
    expected, words = plain_type(field.type), field.metadata["words"]
    if expected is tuple:
        several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
        read = _as_text if field.metadata["reads"] else _as_entry
        entries = tuple(map(read, value if several else [value]))
        if not all(isinstance(entry, str) for entry in entries):
            raise OptionError(f"`{field.name}`={show(repr(value))}: expected texts or paths")
        return entries

    value = _as_text(value)
    if isinstance(value, str) and value in words:
        return words[value]
    # NumPy's numbers are accepted. A bool is an int in Python, but not a valid number here.
    if not isinstance(value, bool):
        if expected is int and isinstance(value, numbers.Integral):
            return int(value)
        if expected is float and isinstance(value, numbers.Real):
            return float(value)
    if type(value) is not expected:
        raise OptionError(f"`{field.name}`={show(repr(value))}: expected {_EXPECTED[expected]}")
    return value


def _as_entry(value: Any) -> Any:
    """Like `_as_text`, and numbers as the command line has them: a list of shares is of texts."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return str(value) if is_number else _as_text(value)


def _as_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value
