"""The jobs as functions, for notebooks and other programs.

Their keyword arguments have the names of the command line's flags; errors name them in backticks.
Signatures follow from the classes of options; `dcse_tf/__init__.pyi` spells them out for editors
and type checkers, and `dcse JOB --help` explains them.
"""

import contextlib
import functools
import importlib
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dcse_tf import progress
from dcse_tf.arguments import T, load, read_flags
from dcse_tf.baselines.registry import FitBaselineOptions
from dcse_tf.data.corpus import PrepareOptions
from dcse_tf.discovery.discover import DiscoverOptions
from dcse_tf.errors import name_missing_tensorflow
from dcse_tf.evaluation.evaluate import EvaluateOptions
from dcse_tf.exporting.export_formats import ExportOptions
from dcse_tf.search.embed_file import EmbedOptions
from dcse_tf.tasks.train_options import TrainOptions
from dcse_tf.training.merge import MergeOptions

if TYPE_CHECKING:
    from dcse_tf.data.manifest import Manifest
    from dcse_tf.evaluation.report import Result
    from dcse_tf.training.hooks import Outcome


def make_options(
    kind: type[T], job: str, preset: str | Sequence[str], given: Mapping[str, Any]
) -> T:
    """Builds a job's options from presets and keywords, which win; see `_job`."""
    flags = [f"--preset={name}" for name in ([preset] if isinstance(preset, str) else preset or ())]
    keywords = {name: value for name, value in given.items() if value is not None}
    chooser = kind.choice()[0]
    flags += [f"--{chooser}={keywords[chooser]}"] if chooser in keywords else []
    return kind.from_dict(read_flags(kind, job, flags)[1] | keywords)


def _job(kind: type[T]) -> Callable[[Callable[[T], Any]], Any]:
    """Makes a function of keyword arguments from one of a job's options, which stays as its `run`.

    Every function takes `preset`, a preset's name or several, of which later ones win, and the
    options of the class as keywords. None counts as not given. It raises OptionError if an option
    is unknown, missing or out of range or contradicts another, and InputError if a file does not
    exist or TensorFlow is not installed.
    """

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(*, preset: str | Sequence[str] = (), **given: Any) -> Any:
            job = function.__name__
            options = make_options(kind, job, preset, given)
            options.check_files()
            # absl adds a handler with the basic format to a root logger that has none. A program
            # that has configured logging itself shows messages its own way.
            formats = (getattr(handler.formatter, "_fmt", "") for handler in logging.root.handlers)
            own = any(form != logging.BASIC_FORMAT for form in formats)
            shown = contextlib.nullcontext() if own else progress.show_log()
            with shown, name_missing_tensorflow(job):
                return function(options)

        # `help` would show the function inside.
        del call.__wrapped__
        vars(call).update(options=kind, run=function)
        return call

    return decorate


@_job(PrepareOptions)
def prepare_data(options: PrepareOptions) -> "Manifest":
    """Converts dialogue files to tokenised, sharded records for `train`.

    >>> manifest = dcse_tf.prepare_data(
    ...     format="jsonl", input="dialogues.jsonl", vocab_size=300, output_dir="prepared"
    ... )
    >>> manifest.splits["train"].sessions > 0
    True

    Returns:
        The manifest of the folder: `splits` counts sessions, utterances and tokens, `dropped` what
        was left out.

    Raises:
        InputError: an input cannot be read, has too many bad lines, or has no training session.
        FileExistsError: the output exists, without `overwrite`.
    """
    on_cluster, here = "spark.prepare_on_spark:prepare_on_spark", "data.prepare:prepare"
    return load(on_cluster if options.spark_master else here)(options)


@_job(DiscoverOptions)
def discover(options: DiscoverOptions) -> Any:
    """Groups what the speakers of a role say by its meaning, without labels.

    >>> found = dcse_tf.discover(
    ...     model="run", format="jsonl", input="dialogues.jsonl", output_dir="report"
    ... )
    >>> dcse_tf.Clusters.load("report").predict(["where is my parcel"])[0]._fields
    ('cluster', 'name', 'similarity')

    Returns:
        The lines of clusters.jsonl as a pandas DataFrame, or a list of dicts where pandas is not
        installed.

    Raises:
        InputError: the model or an input cannot be used. OptionError: no turn is of the role.
        FileExistsError: the output exists, without `overwrite`.
    """
    records = load("discovery.discover:discover")(options)
    with contextlib.suppress(ImportError):
        return importlib.import_module("pandas").DataFrame(records)
    return records


@_job(TrainOptions)
def train(options: TrainOptions) -> "Outcome | None":
    """Trains a sentence encoder or a re-ranker on a prepared corpus, or resumes a run.

    >>> outcome = dcse_tf.train(
    ...     preset="recommended", data_dir="data", encoder_size="tiny", run_dir="trained", steps=2
    ... )
    >>> outcome.kept.step in (0, 2)
    True

    Returns:
        `scores` has the dev scores of the last step; `kept` is the best step, whose encoder the
        run directory holds; `verdict.describe()` says whether it is better than the start, unless
        that is None. With several workers, None on all but the first.

    Raises:
        InputError: data or checkpoint cannot be used, or the run was started with other options.
        TrainingError: the loss diverged. LockedError: another process works in `run_dir`.
        Stopped: a signal, such as Ctrl-C, stopped the run; the same call resumes it.
    """
    return load("training.train:train")(options)


@_job(FitBaselineOptions)
def fit_baseline(options: FitBaselineOptions) -> str:
    """Fits a baseline without training: centering, whitening, flow or word vectors.

    >>> _ = dcse_tf.fit_baseline(
    ...     kind="centering", encoder="run", data_dir="data", output_dir="centred"
    ... )
    >>> dcse_tf.SentenceEncoder.load("centred").encode(["where is it"]).shape
    (1, 128)

    Returns:
        A sentence about the fit.

    Raises:
        InputError: the encoder or the corpus cannot be used.
        FileExistsError: the output exists, without `overwrite`.
    """
    return load("training.fit_baseline:fit_baseline")(options)


@_job(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> "list[Result]":
    """Scores a sentence encoder on retrieval, STS and response selection sets.

    >>> results = dcse_tf.evaluate(model="run", response_selection="data/test.jsonl")
    >>> scores = {name: value for result in results for name, value in result.scores.items()}
    >>> 0 <= scores["cosine_r1"] <= 100
    True

    Returns:
        A result for each set and scoring method, with its `scores` in percent, their 95%
        confidence `intervals`, and the scores of each query, pair or sample in `items`.

    Raises:
        InputError: the model or a set cannot be used. OutputError: `output` cannot be written.
    """
    return load("evaluation.evaluate:evaluate")(options)


class Embedded(NamedTuple):
    """What `embed` wrote."""

    path: pathlib.Path  # the NumPy file or, with `spark_master`, the folder of Parquet files
    rows: int
    dim: int  # of the embeddings


@_job(EmbedOptions)
def embed(options: EmbedOptions) -> Embedded:
    """Embeds the sentences of a file, which may be larger than memory, or resumes such a job.

    For texts in memory, use `SentenceEncoder.encode`.

    >>> embedded = dcse_tf.embed(model="run", input="sentences.txt", output="embeddings.npy")
    >>> embedded.rows, embedded.dim
    (2, 128)

    Returns:
        The path of the file written, float32 `[rows, dim]`, its rows, and their dimension.

    Raises:
        InputError: the model or the input cannot be used, or the interrupted job to resume had
            other settings.
        FileExistsError: the output exists, without `overwrite`.
        LockedError: another process is writing it. OutputError: it cannot be written.
    """
    on_cluster, here = "spark.embed_on_spark:embed_on_spark", "search.embed_file:embed"
    job = load(on_cluster if options.spark_master else here)
    return Embedded(pathlib.Path(options.output), *job(options))


@_job(MergeOptions)
def merge(options: MergeOptions) -> pathlib.Path:
    """Averages an encoder's weights from before and after training.

    >>> dcse_tf.merge(start="start", trained="run", share=0.5, output_dir="merged").name
    'merged'

    Returns:
        The folder of the encoder.

    Raises:
        InputError: an encoder cannot be used.
        OptionError: the encoders differ in architecture or vocabulary.
        FileExistsError: the output exists, without `overwrite`.
    """
    return load("training.merge:merge")(options)


@_job(ExportOptions)
def export(options: ExportOptions) -> pathlib.Path:
    """Exports an encoder or re-ranker, such as to SavedModel, sentence-transformers or ONNX.

    >>> dcse_tf.export(run_dir="run", output_dir="exported", format="sentence_transformers").name
    'exported'

    Returns:
        The folder written.

    Raises:
        InputError: there is nothing to export, or the format cannot hold it.
        FileExistsError: the output exists, without `overwrite`.
        OutputError: the export cannot be written, or its outputs differ from the model's.
    """
    return load("exporting.export:export")(options)
