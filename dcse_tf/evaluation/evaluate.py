"""The evaluation job.

If many settings are tried on a set, the best one is best partly by chance, and its score there too
high. On queries or pairs that were not used for the choice it is unbiased: hence the halves.
"""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from dcse_tf.bert.checkpoints import ENCODER_FOLDER, resolve_checkpoint
from dcse_tf.bert.encoder_options import EncoderOptions, ModelOptions
from dcse_tf.data.formats import CANDIDATE_FORMATS, read_groups
from dcse_tf.errors import InputError
from dcse_tf.evaluation import report, retrieval
from dcse_tf.evaluation import response_selection as selection
from dcse_tf.evaluation.metrics import Encode, Evaluation, describe_context
from dcse_tf.evaluation.report import Result, make_result
from dcse_tf.evaluation.response_selection import Sample, Scores
from dcse_tf.files import atomic_file, hash_bytes, hash_file
from dcse_tf.input_files import BadLines, resolve_inputs
from dcse_tf.options import OptionError, Options, option
from dcse_tf.reading.reranker_files import is_reranker

# What a re-ranker, which gives no embeddings, has no use for.
_OF_EMBEDDINGS = ("retrieval", "sts", *EncoderOptions.fields(), "truncate_dim")


class EvaluateOptions(ModelOptions):
    """Scores an encoder on evaluation sets."""

    retrieval: tuple[str, ...] = option(
        (), "Semantic retrieval sets (select.txt); scored by MAP and MRR.", path="files"
    )
    sts: tuple[str, ...] = option(
        (), "Dialogue STS sets (sts.txt); scored by Spearman's correlation.", path="files"
    )
    response_selection: tuple[str, ...] = option(
        (),
        "Files of sessions as jsonl, such as prepare_data's test.jsonl; scored by R@k and MRR of "
        "the true response, given the turns before it, and (bidirectional) those on both sides.",
        path="files",
    )
    candidates: int = option(
        10, "`response_selection`: candidates per context, with the true response.", minimum=2
    )
    context_turns: int = option(
        3, "`response_selection`: turns before a response in its context, at most.", minimum=1
    )
    max_samples: int = option(
        500,
        "`response_selection`: sessions of a file, with one response each, at most. 0: all.",
        minimum=0,
    )
    seed: int = option(0, "`response_selection`: seed of what is drawn.", minimum=0)
    candidates_file: tuple[str, ...] = option(
        (),
        "Files of grouped candidates, such as build_candidates writes; scored by R@k, MAP and MRR.",
        path="files",
    )
    candidates_format: str = option("jsonl", "Format of the groups.", choices=CANDIDATE_FORMATS)
    candidates_turns: int = option(0, "Last turns of a group's context to use. 0: all.", minimum=0)
    several_positives: bool = option(
        False, "Allow several true responses in a group of `candidates_file`, as in Douban."
    )
    max_bad_lines: int = option(
        0, "Unusable lines of `candidates_file` to leave out before the job stops.", minimum=0
    )
    half: str = option(
        "all",
        "Retrieval and STS: all, or a half by a hash of texts, to choose settings by or to report.",
        choices=("all", "choose", "report"),
    )
    output: str = option("", "JSON file for the results. Default: only a table.", path="writes")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.retrieval or self.sts or self.response_selection or self.candidates_file):
            several = "`retrieval`, `sts`, `response_selection` or `candidates_file`"
            raise OptionError(f"nothing to evaluate: give {several}")
        drawn = ("candidates", "context_turns", "max_samples", "seed")
        self.check_needed("response_selection", *drawn)
        names = ("candidates_format", "candidates_turns", "several_positives", "max_bad_lines")
        self.check_needed("candidates_file", *names)
        check_drawing(self)
        if self.response_selection or self.candidates_file:
            if self.half != "all":
                self.refuse(
                    "half",
                    "is for `retrieval` and `sts`; prepare_data has split the dialogues: choose on "
                    "dev.jsonl, report on test.jsonl",
                )
            if self.projection:
                self.refuse(
                    "projection",
                    "embeds behind one head, and response selection needs both; leave it out, and "
                    "responses are also ranked behind the heads",
                )


class CompareOptions(Options):
    """Compares models by the results that evaluate wrote (paired bootstrap)."""

    results: tuple[str, ...] = option(
        (),
        "Two or more files written by evaluate's `output`, each compared with the first.",
        required=True,
        path="files",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.results) < 2:
            raise OptionError("`results`: expected two files or more, comma-separated")


def check_drawing(options: Any) -> None:
    """Refuses more candidates than samples, whose responses are one another's candidates."""
    if 0 < options.max_samples < options.candidates:
        expected = f"expected at least `candidates`={options.candidates}, or 0"
        why = "the responses of the sessions used are one another's candidates"
        options.refuse("max_samples", f"{expected}: {why}")


def draw_samples(path: pathlib.Path, options: Any, seed: int) -> list[Sample]:
    """Draws samples of a file of sessions, as options say; InputError: too few responses differ."""
    settings = {x: getattr(options, x) for x in ("candidates", "context_turns", "max_samples")}
    sessions = selection.read_dialogues(path)
    samples = selection.make_samples(sessions, seed=seed, **settings)
    if not samples:
        few = f"too few different responses for `candidates`={options.candidates}"
        raise InputError(f"{path}: {few}, of {len(sessions)} dialogues of two turns or more")
    return samples


def _read_response_sets(
    config: EvaluateOptions,
) -> Iterator[tuple[str, pathlib.Path, int, str, list[Sample]]]:
    """Reads the files of sessions and of grouped candidates that the settings name.

    Yields of each: "response" or "candidates"; the path; the most turns of a context on a side, 0
    for all; a hash of drawn samples' texts or, of groups, of whole contexts and of the order of
    candidates, as they are in the file; and the samples.
    """
    for path in resolve_inputs(config.response_selection, "response_selection"):
        samples = draw_samples(path, config, config.seed)
        yield "response", path, config.context_turns, hash_bytes(repr(samples).encode()), samples
    for path in resolve_inputs(config.candidates_file, "candidates_file"):
        bad, several = BadLines(config.max_bad_lines), config.several_positives
        groups = list(read_groups(path, config.candidates_format, bad, several_positives=several))
        if not groups:
            raise InputError(f"{path}: no group of candidates")
        samples = [selection.sample_group(group, config.candidates_turns) for group in groups]
        told = (([turn.text for turn in g.context], g.candidates, g.labels) for g in groups)
        whole = hash_bytes("".join(hash_bytes(repr(each).encode()) for each in told).encode())
        yield "candidates", path, config.candidates_turns, whole, samples


def evaluate(
    config: EvaluateOptions, show: Callable[[list[Result]], None] = lambda results: None
) -> list[Result]:
    """Scores an encoder on every set that the settings name.

    `show` is called with the results before they are written, so that they are not lost if writing
    fails. Raises InputError if a model or a set cannot be used, OutputError if the results cannot
    be written.
    """
    with contextlib.ExitStack() as stack:
        if config.output:  # opened before anything long is done
            partial = stack.enter_context(atomic_file(pathlib.Path(config.output)))
        results, own = _evaluate(config)
        show(results)
        if config.output:
            report.write_results(partial, config.model, {**config.to_dict(), **own}, results)
    return results


def _evaluate(config: EvaluateOptions) -> tuple[list[Result], Mapping[str, Any]]:
    """The results, and the model's own settings."""
    # All sets are read first, so that an error in the last does not waste the encoding of others.
    kinds: dict[str, tuple[Callable[..., Any], Callable[..., Evaluation]]] = {
        "retrieval": (retrieval.read_retrieval_set, retrieval.evaluate_retrieval),
        "sts": (retrieval.read_sts_set, retrieval.evaluate_sts),
    }
    of_embeddings = [
        (task, path, functools.partial(score, read(path, config.half)))
        for task, (read, score) in kinds.items()
        for path in resolve_inputs(getattr(config, task), task)
    ]
    responses = list(_read_response_sets(config))

    own, encode, score_responses = _load(config)
    results = []
    for task, path, score in of_embeddings:
        logging.info("%s on %s", task, path)
        assert encode
        # Different halves of a set cannot be compared.
        fingerprint = hash_file(path) + (f":{config.half}" if config.half != "all" else "")
        results.append(make_result(task, str(path), fingerprint, score(encode)))
    for kind, path, turns, fingerprint, samples in responses:
        logging.info("response selection on %s", path)
        scores = score_responses(samples)
        grouped = kind == "candidates"
        for way, found in selection.evaluate_responses(samples, scores, grouped).items():
            context = describe_context(way, turns)
            results.append(make_result(f"{kind}_{way}", str(path), fingerprint, found, context))
    return results, own


def _load(
    config: EvaluateOptions,
) -> tuple[Mapping[str, Any], Encode | None, Callable[[Sequence[Sample]], Scores]]:
    """Loads a sentence encoder or a re-ranker: its settings; what embeds texts, None for a
    re-ranker; and what scores the candidates of samples by each similarity that the model has.
    """
    place = pathlib.Path(config.model)
    folders = [place / ENCODER_FOLDER, place]
    if not place.exists() and (config.model.startswith("package:") or "/" in config.model):
        # A package or a name on the hub; both are checkpoints.
        folders = [resolve_checkpoint(config.model, "model")]
    if any(map(is_reranker, folders)):
        for name in _OF_EMBEDDINGS:
            if config.is_given(name):
                raise InputError(
                    f"`{name}`: {config.model} is a re-ranker, which gives no embeddings; it is "
                    "for `response_selection` and `candidates_file`"
                )
        from dcse_tf.reranker.reranker import Reranker

        reranker = Reranker.from_options(config, "model")
        scorer = functools.partial(selection.score_by_reranker, score=reranker.score)
        return dict.fromkeys(_OF_EMBEDDINGS) | reranker.settings, None, scorer

    from dcse_tf.encoder.sentence_encoder import SentenceEncoder

    encoder = SentenceEncoder.from_options(config)
    side, match = encoder.settings.get("projection"), encoder.match
    if config.response_selection or config.candidates_file:
        if side:
            raise InputError(
                f"`model`={config.model}: an export that embeds behind its {side} head, and "
                "response selection needs both heads; evaluate what it was exported from"
            )
        if not match:
            lacks = "%s has only sentence embeddings: response selection by cosine only"
            logging.warning(lacks, encoder.name)

    def score(samples: Sequence[Sample]) -> Scores:
        found = selection.score_by_matching(samples, match) if match else {}
        return {**found, **selection.score_by_embeddings(samples, encoder.encode, encoder.heads)}

    return encoder.settings, encoder.encode, score
