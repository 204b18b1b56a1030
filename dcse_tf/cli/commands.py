"""The jobs as commands: `dcse JOB --flag=value`, or `python -m dcse_tf.cli JOB`.

Only a job's own modules import TensorFlow, so that --help and errors in flags appear at once.
"""

import contextlib
import dataclasses
import faulthandler
import gc
import importlib.metadata
import json
import os
import pathlib
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dcse_tf import progress
from dcse_tf.arguments import list_presets, load, parse_flags, read_flags
from dcse_tf.errors import EXIT_STATUS, InputError, name_input, name_missing_tensorflow
from dcse_tf.files import atomic_file
from dcse_tf.input_files import BadLines, read_lines, resolve_inputs
from dcse_tf.options import OptionError, Options, show

HELP = {"--help", "-h", "-help"}  # or, in place of a job or of its flags, "help"
# Groups of options in their order, those of plug-ins follow; and headings other than their names.
_GROUPS = (
    *("main", "batches and context", "", "encoder", "optimizer", "evaluation"),
    *("log and checkpoints", "devices and speed"),
)
_HEADINGS = {"main": "Main flags", "": "What is learnt", "evaluation": "Evaluation on dev data"}
_PRESET = "Settings where no other flag gives them: a preset, or several with commas between."
_FLAG_FILE = (
    "File with a flag a line; lines that begin with # are comments. Names of flag files in it are "
    "relative to it. Of a repeated flag, the last counts."
)
_BACKTICKS = re.compile("`([a-z][a-z0-9_]*)`")
_LONGEST_MESSAGE = 1000  # characters


def prepare_data(options: Any) -> None:
    """Prints the manifest's figures."""
    prepare = load("api:prepare_data").run
    # Collections that traverse the imported objects, while many short-lived turns are made, would
    # take a quarter of the time.
    gc.freeze()
    manifest = prepare(options)
    for name, split in manifest.splits.items():
        told = f"{name}: {split.sessions} sessions, {split.utterances} utterances, "
        print(f"{told}{split.tokens} tokens, {split.truncated_utterances} utterances cut")
        if split.given:
            print(f"  with {split.given['negatives']} negatives of their responses")
    print("left out: " + ", ".join(f"{count} {what}" for what, count in manifest.dropped.items()))
    found = manifest.found
    print(f"unknown tokens: {100 * found['unknown_tokens'] / max(1, found['tokens']):.2f}%")


def train(options: Any) -> None:
    """Trains, and ends with the status that says whether the same command resumes the run."""
    # Before and after its steps. Several workers wait for one another where Python sees no signal.
    handler = signal.SIG_DFL if "TF_CONFIG" in os.environ else lambda *_: sys.exit(EXIT_STATUS)
    before = signal.signal(signal.SIGTERM, handler)
    from dcse_tf.training.controller import Stopped, TrainingError, WorkersError

    try:
        outcome = load("training.train:train")(options)
    except TrainingError as error:
        sys.exit(f"error: {one_line(error)}")
    except WorkersError as error:
        print(f"error: {one_line(error)}; the same command resumes the run", file=sys.stderr)
        sys.exit(EXIT_STATUS)
    except Stopped as stop:
        print(stop)
        sys.exit(EXIT_STATUS)
    finally:
        signal.signal(signal.SIGTERM, before)
    if outcome is None:
        print(f"this worker has finished; the first one wrote {options.run_dir}")
        return
    print(f"the trained model is in {options.run_dir}/encoder")
    print(f"kept: {outcome.kept.describe()}")
    for warning in outcome.list_warnings():
        print(f"warning: {as_flags(warning)}")
    if outcome.verdict:
        print(f"verdict, for embeddings of single turns: {outcome.verdict.describe()}")
    print(f"watch it with: tensorboard --logdir {options.run_dir}")


def evaluate(options: Any) -> None:
    """Prints the table of all sets, and then writes the results."""
    from dcse_tf.evaluation import evaluate as job
    from dcse_tf.evaluation.report import format_table

    job.evaluate(options, lambda results: print(format_table(results), flush=True))
    if options.half != "all":
        print(f"scored: the half of --half={options.half}")
    if options.output:
        print(f"results are in {options.output}")


def compare(options: Any) -> None:
    """Compares the first results with each of the others."""
    from dcse_tf.evaluation import report
    from dcse_tf.evaluation.bootstrap import holm

    (baseline, first, settings), *others = map(report.read_results, options.results)
    compared = [report.compare_results(first, second) for _, second, _ in others]
    # All comparisons of one call are one family for the correction of Holm.
    corrected = iter(holm([each.difference.p_value for found in compared for each in found]))
    for (model, _, other_settings), found in zip(others, compared, strict=True):
        print(f"first: {baseline}, second: {model}")
        for difference in report.describe_differences(settings, other_settings):
            print(f"warning: {as_flags(difference)}")
        print(report.format_comparisons(found, [next(corrected) for _ in found]))


def embed(options: Any) -> str:
    """Says what was written."""
    path, rows, dim = load("api:embed").run(options)
    return f"{rows} embeddings of {dim} dimensions are in {path}"


def search(options: Any) -> None:
    """Answers the queries of the options or, one at a time, those of standard input."""
    from dcse_tf.bert.vocabulary import is_blank
    from dcse_tf.search.searcher import open_searcher

    given = None if options.query is None else [options.query]
    if options.queries:
        paths = resolve_inputs(options.queries, "queries")
        lines = (text for path in paths for _, text in read_lines(path, BadLines()))
        given = [text for text in lines if not is_blank(text)]
    written = options.output not in ("", "-")
    with contextlib.ExitStack() as stack:
        file = sys.stdout
        if written:  # before the index is built, which takes long
            partial = stack.enter_context(atomic_file(pathlib.Path(options.output)))
            file = stack.enter_context(partial.open("w", encoding="utf-8"))
        searcher = stack.enter_context(open_searcher(options))
        # The sender of a line of standard input may wait for its answer.
        asked = (query for query in _read_queries() if not is_blank(query))
        single = ((query, searcher.answer([query])[0]) for query in asked)
        for query, hits in single if given is None else searcher.answer_all(given):
            answer = _format_json if options.output else _format_answer
            print(answer(query, hits), file=file, flush=not written)
    if written:
        print(f"the answers are in {options.output}")


def _read_queries() -> Iterator[str]:
    """Yields the lines of standard input."""
    if sys.stdin.isatty():
        print("a query a line, please; Ctrl-D ends", file=sys.stderr)
    for number, raw in enumerate(iter(sys.stdin.buffer.readline, b""), start=1):
        with name_input(f"standard input:{number}: not UTF-8", UnicodeDecodeError):
            query = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        yield query


def _format_answer(query: str, hits: list[Any]) -> str:
    """A query and a line per hit: rank, scores, line, count and text, where they apply."""
    lines = [query]
    for hit in hits:
        often = f" (x{hit.count})" if hit.count > 1 else ""
        score = "" if hit.score is None else f"{hit.score:8.4f}  "
        lines.append(f"{hit.rank:>4}  {score}{hit.cosine:.4f}  line {hit.line}{often}  {hit.text}")
    return "\n".join([*lines, "" if hits else "   -  none of the texts is good enough\n"])


def _format_json(query: str, hits: list[Any]) -> str:
    """A query and its hits as one line of JSON."""
    answers = [
        {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in dataclasses.asdict(hit).items()
            if value is not None
        }
        for hit in hits
    ]
    return json.dumps({"query": query, "answers": answers}, ensure_ascii=False)


class Job(NamedTuple):
    """A job of the command line; what it names as MODULE:NAME is imported when it is needed."""

    summary: str
    options: str  # the class of its options
    run: str | Callable[[Any], str | None]  # takes them; a text that it returns is shown
    then: str = ""  # what to show afterwards, with the options' values in braces


JOBS = {
    "prepare_data": Job(
        "Turns files of dialogues into tokenised, sharded TFRecords.",
        "data.corpus:PrepareOptions",
        prepare_data,
        "records, dev.jsonl, test.jsonl and manifest.json are in {output_dir}",
    ),
    "inspect_data": Job(
        "Describes a corpus of dialogues, and finds the sentences of evaluation sets in it.",
        "inspecting.corpus_report:InspectOptions",
        "inspecting.corpus_report:inspect_data",
        "\nreport.html, report.json and leaks.tsv are in {output_dir}",
    ),
    "discover": Job(
        "Groups what customers say by its meaning: which requests, how many, answered how.",
        "discovery.discover:DiscoverOptions",
        "discovery.discover:discover",
        "the report is in {output_dir}/report.html, with clusters.jsonl and turns.tsv beside it",
    ),
    "train": Job(
        "Trains a sentence encoder on prepared dialogues.",
        "tasks.train_options:TrainOptions",
        train,
    ),
    "fit_baseline": Job(
        "Fits an untrained baseline: centering, whitening, flow or word vectors.",
        "baselines.registry:FitBaselineOptions",
        "training.fit_baseline:fit_baseline",
        "the baseline is in {output_dir}; evaluate it with --model={output_dir}",
    ),
    "evaluate": Job(
        "Scores a sentence encoder on retrieval, STS and response selection sets.",
        "evaluation.evaluate:EvaluateOptions",
        evaluate,
    ),
    "compare": Job(
        "Compares models by the results that evaluate wrote, by a paired bootstrap.",
        "evaluation.evaluate:CompareOptions",
        compare,
    ),
    "embed": Job("Embeds the sentences of a file.", "search.embed_file:EmbedOptions", embed),
    "search": Job(
        "Finds the texts of a corpus that are nearest to queries.",
        "search.searcher:SearchOptions",
        search,
    ),
    "calibrate": Job(
        "Learns which answers are good enough, and the weight of two stages.",
        "search.calibrate:CalibrateOptions",
        "search.calibrate:calibrate",
        "the calibration is in {output}: --calibration for search or, of one re-ranker, for serve",
    ),
    "explain": Job(
        "Shows what the similarity of a response and its context is made of.",
        "inspecting.explain:ExplainOptions",
        "inspecting.explain:explain",
        "explanation.html is in {output_dir}",
    ),
    "merge": Job(
        "Averages an encoder's weights from before and after training.",
        "training.merge:MergeOptions",
        "training.merge:merge",
        "the encoder is in {output_dir}; evaluate it with --model={output_dir}",
    ),
    "export": Job(
        "Exports a trained encoder or re-ranker for serving.",
        "exporting.export_formats:ExportOptions",
        "exporting.export:export",
        "the export ({format}) is in {output_dir}",
    ),
    "serve": Job(
        "Answers requests over HTTP: embeddings and re-ranking.",
        "serving.serve:ServeOptions",
        "serving.serve:serve",
    ),
    "build_retrieval": Job(
        "Builds a semantic retrieval set (select.txt) from sentences with labels.",
        "sets.retrieval_set:BuildRetrievalOptions",
        "sets.retrieval_set:build_retrieval",
        "the set is in {output}",
    ),
    "build_candidates": Job(
        "Builds grouped candidates for response selection from dialogues.",
        "sets.candidate_set:BuildCandidatesOptions",
        "sets.candidate_set:build_candidates",
        "the groups are in {output}; then: dcse evaluate --model=... --candidates_file={output}",
    ),
}


def list_jobs() -> str:
    """The text of `dcse --help`."""
    lines = [f"  {name:18}{job.summary}" for name, job in JOBS.items()]
    lines.append(f"  {'presets':18}Lists settings for the jobs, by the names that --preset takes.")
    usage, more = "usage: dcse JOB --flag=value ...\n", "\ndcse JOB --help lists its flags."
    return "\n".join([usage, *lines, more])


def describe_job(job: str, arguments: Sequence[str]) -> str:
    """The text of `dcse JOB --help`.

    If the class of its options stands for several, such as those of the training tasks, the text is
    that of the one that the other arguments choose, or of the first.
    """
    kind = load_options(job)
    chooser, entries = kind.choice()
    usage = f"usage: dcse {job} {f'{chooser.upper()} ' if chooser else ''}--flag=value ..."
    parts = [usage, JOBS[job].summary]
    if chooser:
        lines = (f"  {name:20}{entry.help}" for name, entry in entries.items())
        parts.append("\n".join([f"Each {chooser.upper()} has its own flags:", *lines]))
        arguments = arguments or [next(iter(entries))]
    chosen, _ = read_flags(kind, job, arguments)

    groups: dict[str, list[str]] = {group: [] for group in _GROUPS}
    for field in dataclasses.fields(chosen):
        if field.name != chooser:
            groups.setdefault(field.metadata["group"], []).append(_describe_option(field))
    presets, first = list_presets(job), groups["main"] or groups[""]
    first += [_format("--preset=", _PRESET)] if presets else []
    first.append(_format("--flagfile=", _FLAG_FILE))
    for group, flags in groups.items():
        heading = _HEADINGS.get(group, group.capitalize()) if groups["main"] else "Flags"
        parts += ["\n".join([f"{heading}:", *flags])] if flags else []
    if presets:
        parts.append("\n".join(["Presets:", *(f"  {p.name:22}{p.summary}" for p in presets)]))
    return as_flags("\n\n".join(parts))


def _describe_option(field: dataclasses.Field) -> str:
    """The flag with its default, and below it the text of the option."""
    rules, default = field.metadata, field.default
    words = {number: word for word, number in rules["words"].items()}
    shown = words.get(default, str(default).lower() if isinstance(default, bool) else default)
    text = rules["help"] + (" Required." if rules["required"] else "")
    if isinstance(rules["choices"], Mapping):  # a registry
        entries = (f"{name} ({entry.help})" for name, entry in rules["choices"].items())
        text += f" One of: {'; '.join(entries)}."
    elif rules["choices"]:
        text += f" One of: {', '.join(filter(None, rules['choices']))}."
    return _format(f"--{field.name}={'' if shown is None else show(shown)}", text)


def _format(flag: str, text: str) -> str:
    return f"  {flag}\n" + textwrap.indent(textwrap.fill(text, 92), " " * 6)


def as_flags(message: str) -> str:
    """Rewrites options in backticks in a message as flags: `seed` becomes --seed."""
    return _BACKTICKS.sub(r"--\1", message)


def one_line(error: BaseException) -> str:
    """An error's message as one printable line of bounded length."""
    text = as_flags(str(error)[: 2 * _LONGEST_MESSAGE])
    return show(" ".join(text.splitlines()), _LONGEST_MESSAGE)


def load_options(job: str) -> type[Options]:
    return load(JOBS[job].options)


def list_options() -> Iterator[tuple[str, type[Options]]]:
    """Yields "job" and its options for every job, and "job NAME" for each task and baseline."""
    for job in JOBS:
        kind = load_options(job)
        yield job, kind
        yield from ((f"{job} {name}", each.options) for name, each in kind.choice()[1].items())


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script `dcse`; takes the job and its flags from sys.argv unless given."""
    if arguments is None:
        faulthandler.enable()
        out: Any = sys.stdout  # in UTF-8, as all files are; in a terminal's own encoding, if it can
        out.reconfigure(encoding=None if out.isatty() else "utf-8", errors="backslashreplace")
        arguments = sys.argv[1:]
    job, *flags = arguments or ["--help"]
    try:
        if job in {*HELP, "help"}:
            print(list_jobs())
        elif job == "--version":
            print(importlib.metadata.version("dcse_tf"))
        elif job == "presets":
            print("Settings for a job, by the names that --preset takes:\n")
            for each in list_presets():
                print(f"  {each.name:24}{each.job:16}{each.summary}")
        elif job in JOBS:
            _run(job, flags)
        else:
            sys.exit(f"error: {show(job)} is not a job; dcse --help lists them")
        print(end="", flush=True)
    except BrokenPipeError:
        # Whoever reads the output (1) has gone, as in `dcse --help | true`. Python flushes it again
        # when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(128 + signal.SIGPIPE)
    except (OptionError, InputError, OSError) as error:
        sys.exit(f"error: {one_line(error)}")
    except MemoryError as error:
        sys.exit(f"error: out of memory {one_line(error)}".rstrip())
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _run(job: str, flags: Sequence[str]) -> None:
    if HELP & {*flags} or flags == ["help"]:
        print(describe_job(job, [flag for flag in flags if flag not in {*HELP, "help"}]))
        return
    run, options = JOBS[job].run, parse_flags(load_options(job), job, flags)
    options.check_files()
    with progress.show_log(spell=as_flags), name_missing_tensorflow(job):
        found = (load(run) if isinstance(run, str) else run)(options)
    for text in (found, JOBS[job].then.format_map(options.to_dict())):
        if text and isinstance(text, str):
            print(text)
