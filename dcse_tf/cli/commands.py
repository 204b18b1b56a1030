"""The jobs as commands: `dcse JOB --flag=value`, or `python -m dcse_tf.cli JOB`.

Only a job's own modules import TensorFlow, so that --help and errors in flags appear at once.
"""

import contextlib
import faulthandler
import importlib
import importlib.metadata
import os
import pathlib
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dcse_tf import progress
from dcse_tf.arguments import find_files, parse_flags
from dcse_tf.cli.help import HELP, as_flags, describe_job, list_all_presets, list_jobs, one_line
from dcse_tf.cli.launch import launch
from dcse_tf.cli.queries import search
from dcse_tf.errors import EXIT_STATUS, InputError, name_missing_tensorflow
from dcse_tf.options import OptionError, Options, show
from dcse_tf.stores import stage

if TYPE_CHECKING:
    from dcse_tf.baselines.registry import BaselineOptions
    from dcse_tf.data.options import PrepareOptions
    from dcse_tf.evaluation.evaluate_options import CompareOptions, EvaluateOptions
    from dcse_tf.exporting.export_options import ExportOptions
    from dcse_tf.inspecting.inspect_options import ExplainOptions, InspectOptions
    from dcse_tf.search.search_options import EmbedOptions
    from dcse_tf.serving.serve import ServeOptions
    from dcse_tf.sets.set_options import (
        BuildCandidatesOptions,
        BuildRetrievalOptions,
        BuildStsOptions,
        MergeStsOptions,
    )
    from dcse_tf.tasks.options import TrainOptions
    from dcse_tf.training.merge_options import MergeOptions

_STDOUT = 1  # its file descriptor


def prepare_data(options: "PrepareOptions") -> None:
    """Turns files of dialogues into tokenised, sharded TFRecords."""
    if options.spark_master:
        from dcse_tf.spark.prepare import prepare_on_spark as job
    else:
        from dcse_tf.data.prepare import prepare_data as job

    manifest = job(options)
    for name, split in manifest.splits.items():
        print(
            f"{name}: {split.sessions} sessions, {split.utterances} utterances, {split.tokens} "
            f"tokens, {split.truncated_utterances} utterances cut"
        )
        if split.given:
            print(f"  with {split.given.negatives} negatives of their responses")
    print("left out: " + ", ".join(f"{count} {what}" for what, count in manifest.dropped.items()))
    sessions = sum(split.sessions for split in manifest.splits.values())
    found, copies = manifest.found, manifest.found["copies"]
    unknown = 100 * found["unknown_tokens"] / max(1, found["tokens"])
    print(
        f"copies of an earlier session: {copies} ({100 * copies / sessions:.2f}%); "
        f"unknown tokens: {unknown:.2f}%"
    )
    print(f"records, dev.jsonl, test.jsonl and manifest.json are in {options.output_dir}")


def inspect_data(options: "InspectOptions") -> None:
    """Describes a corpus of dialogues, and finds the sentences of evaluation sets in it."""
    from dcse_tf.inspecting import corpus_report as job

    print(job.inspect_data(options))
    print(f"\nreport.html, report.json and leaks.tsv are in {options.output_dir}")


def train(options: "TrainOptions") -> None:
    """Trains a sentence encoder on prepared dialogues."""
    from dcse_tf.training import job
    from dcse_tf.training.controller import Stopped, TrainingError
    from dcse_tf.training.workers import WorkersError

    try:
        outcome = job.train(options)
    except TrainingError as error:
        sys.exit(f"error: {one_line(error)}")
    except WorkersError as error:
        print(f"error: {one_line(error)}; the same command resumes the run", file=sys.stderr)
        sys.exit(EXIT_STATUS)
    except Stopped as stop:
        print(stop)
        sys.exit(EXIT_STATUS)
    if outcome is None:
        print(f"this worker has finished; the first one wrote {options.run_dir}")
        return
    print(f"the trained model is in {options.run_dir}/encoder")
    print(f"kept: {outcome.kept.describe()}")
    for warning in outcome.list_warnings():
        print(f"warning: {warning}")
    print(f"watch it with: tensorboard --logdir {options.run_dir}")


def fit_baseline(options: "BaselineOptions") -> None:
    """Fits an untrained baseline: centering, whitening, flow, or averaged word vectors."""
    from dcse_tf.baselines import fit_baseline as job

    print(job.fit_baseline(options))
    print(f"the baseline is in {options.output_dir}; evaluate it with --model={options.output_dir}")


def evaluate(options: "EvaluateOptions") -> None:
    """Scores a sentence encoder on retrieval, STS and response selection sets."""
    from dcse_tf.evaluation import evaluate as job
    from dcse_tf.evaluation.report import format_table

    job.evaluate(options, lambda results: print(format_table(results), flush=True))
    if options.half != "all":
        print(f"scored: the half of --half={options.half}")
    if options.output:
        print(f"results are in {options.output}")


def compare(options: "CompareOptions") -> None:
    """Compares models by the results that evaluate wrote, by a paired bootstrap."""
    from dcse_tf.evaluation.bootstrap import holm
    from dcse_tf.evaluation.report import (
        compare_results,
        describe_differences,
        format_comparisons,
        read_json,
    )

    (baseline, first, settings), *others = (
        read_json(pathlib.Path(path)) for path in options.results
    )
    compared = [compare_results(first, second) for _, second, _ in others]
    # All comparisons of one call are one family for the correction of Holm.
    corrected = iter(holm([each.difference.p_value for found in compared for each in found]))
    for (model, _, other_settings), found in zip(others, compared, strict=True):
        print(f"first: {baseline}, second: {model}")
        for difference in describe_differences(settings, other_settings):
            print(f"warning: {as_flags(difference)}")
        print(format_comparisons(found, [next(corrected) for _ in found]))


def embed(options: "EmbedOptions") -> None:
    """Embeds the sentences of a file."""
    if options.spark_master:
        from dcse_tf.spark.embed import embed_on_spark as job
    else:
        from dcse_tf.search.embed import embed as job

    rows, dim = job(options)
    print(f"{rows} embeddings of {dim} dimensions are in {options.output}")


def explain(options: "ExplainOptions") -> None:
    """Shows what the similarity of a response and its context is made of."""
    from dcse_tf.inspecting import explain as job

    print(job.explain(options))
    print(f"explanation.html and explanation.json are in {options.output_dir}")


def merge(options: "MergeOptions") -> None:
    """Averages an encoder's weights from before and after training."""
    from dcse_tf.training import merge as job

    folder = job.merge(options)
    print(f"the encoder is in {folder}; evaluate it with --model={folder}")


def export(options: "ExportOptions") -> None:
    """Exports a trained encoder or re-ranker for serving."""
    from dcse_tf.exporting import job

    folder = job.export(options)
    print(f"the export ({options.format}) is in {folder}")


def serve(options: "ServeOptions") -> None:
    """Answers requests over HTTP: embeddings and re-ranking."""
    from dcse_tf.serving import serve as job

    job.serve(options, lambda url: print(f"serving at {url}", flush=True))


def build_retrieval(options: "BuildRetrievalOptions") -> None:
    """Builds a semantic retrieval set (select.txt) from sentences with labels."""
    from dcse_tf.sets import retrieval_set as job

    print(job.build_retrieval(options))
    print(f"the set is in {options.output}")


def build_candidates(options: "BuildCandidatesOptions") -> None:
    """Builds grouped candidates for response selection from dialogues."""
    from dcse_tf.sets import candidate_set as job

    print(job.build_candidates(options))
    print(
        f"the groups are in {options.output}; then: dcse evaluate --model=... "
        f"--candidates_file={options.output}"
    )


def build_sts(options: "BuildStsOptions") -> None:
    """Chooses pairs of sentences for a dialogue STS set, on sheets for annotators."""
    from dcse_tf.sets import sts_set as job

    print(job.build_sts(options))
    print(
        f"sheets to fill, guidelines.txt and pairs.jsonl are in {options.output_dir}; then: dcse "
        f"merge_sts --sheets='{options.output_dir}/sheet_*.csv' --output=sts.txt"
    )


def merge_sts(options: "MergeStsOptions") -> None:
    """Merges annotators' sheets into a dialogue STS set (sts.txt)."""
    from dcse_tf.sets import sts_set as job

    print(job.merge_sts(options))
    print(f"the set is in {options.output}")


# The module and the name of each job's options, and its function, in the order in which --help
# lists them. --help describes a job with its function's docstring.
JOBS: dict[str, tuple[str, str, Callable[[Any], None]]] = {
    "prepare_data": ("data.options", "PrepareOptions", prepare_data),
    "inspect_data": ("inspecting.inspect_options", "InspectOptions", inspect_data),
    "train": ("tasks.options", "TrainOptions", train),
    "fit_baseline": ("baselines.registry", "FitBaselineOptions", fit_baseline),
    "evaluate": ("evaluation.evaluate_options", "EvaluateOptions", evaluate),
    "compare": ("evaluation.evaluate_options", "CompareOptions", compare),
    "embed": ("search.search_options", "EmbedOptions", embed),
    "search": ("search.search_options", "SearchOptions", search),
    "explain": ("inspecting.inspect_options", "ExplainOptions", explain),
    "merge": ("training.merge_options", "MergeOptions", merge),
    "export": ("exporting.export_options", "ExportOptions", export),
    "serve": ("serving.serve", "ServeOptions", serve),
    "build_retrieval": ("sets.set_options", "BuildRetrievalOptions", build_retrieval),
    "build_candidates": ("sets.set_options", "BuildCandidatesOptions", build_candidates),
    "build_sts": ("sets.set_options", "BuildStsOptions", build_sts),
    "merge_sts": ("sets.set_options", "MergeStsOptions", merge_sts),
}


def load_options(job: str) -> type[Options]:
    """The class of a job's options.

    It is imported when it is needed: the options of all jobs take longer than a small export to
    load.
    """
    module, name, _ = JOBS[job]
    return getattr(importlib.import_module(f"dcse_tf.{module}"), name)


def list_options() -> Iterator[tuple[str, type[Options]]]:
    """Yields "job" and its options for every job, and "job NAME" for each task and baseline."""
    for job in JOBS:
        kind = load_options(job)
        yield job, kind
        yield from ((f"{job} {name}", each.options) for name, each in kind.choice()[1].items())


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script `dcse`.

    Args:
        arguments: the job and its flags; None to take them from sys.argv.
    """
    if arguments is None:
        faulthandler.enable()
        arguments = sys.argv[1:]
    job, *arguments = arguments or ["--help"]
    with _tell_errors():
        if job in HELP:
            print(list_jobs({name: str(entry[2].__doc__) for name, entry in JOBS.items()}))
        elif job == "--version":
            print(importlib.metadata.version("dcse_tf"))
        elif job == "presets":
            print(f"Settings for a job, by the names that --preset takes:\n\n{list_all_presets()}")
        elif job == "launch":
            launch(arguments)
        elif job in JOBS:
            run(job, arguments)
        else:
            sys.exit(f"error: {show(job)} is not a job; dcse --help lists them")


def run(job: str, arguments: Sequence[str]) -> None:
    """Runs a job; user errors end the process with a one-line message.

    Args:
        job: the job's name.
        arguments: the job's flags.
    """
    with _tell_errors():
        kind = load_options(job)
        if HELP & {*arguments}:
            others = [argument for argument in arguments if argument not in HELP]
            print(describe_job(job, str(JOBS[job][2].__doc__), kind, others))
            return
        options = parse_flags(kind, job, arguments)
        find_files(options)
        with (
            progress.show_log(spell=as_flags),
            stage(options) as staged,
            name_missing_tensorflow(job),
        ):
            JOBS[job][2](staged)


@contextlib.contextmanager
def _tell_errors() -> Iterator[None]:
    """Turns user errors into a one-line message and an exit status.

    If whoever reads standard output has gone, as in `dcse --help | true`, the status alone says so.
    """
    try:
        yield
        print(end="", flush=True)
    except (OptionError, InputError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            # Python flushes standard output once more when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
            sys.exit(128 + signal.SIGPIPE)
        sys.exit(f"error: {one_line(error)}")
    except MemoryError as error:
        sys.exit(f"error: out of memory {one_line(error)}".rstrip())
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _reader_has_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(_STDOUT, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
