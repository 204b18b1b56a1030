"""The settings of the response selection experiments: size, corpora, seeds, budgets."""

import argparse
import dataclasses
import pathlib

from selection_rows import ROWS
from settings import (
    MINILM,
    SettingsError,
    check_numbers,
    list_dialogue_formats,
    locate_encoder,
    read_job_flags,
    read_source,
)

from dcse_tf.data.candidates import CANDIDATE_FORMATS


@dataclasses.dataclass(frozen=True)
class Size:
    """The settings that a size determines.

    Attributes:
        context_turns: turns before a response, in training and in the candidates' contexts.
        context_tokens, response_tokens: most tokens of the two segments.
        sessions: sessions per step. Each gives a pair with its own response and a pair with another
            one, so 16 sessions are the paper's 32 pairs.
        steps: steps of every model's own training, so that all see equally many pairs. None for the
            task's default of 10 epochs, of which the best on dev is kept.
        post_steps: steps of each post-training; None for the task's default.
        evaluations: number of evaluations on dev data within the steps.
        dev_samples: sessions per evaluation on dev data.
        learning_rate: learning rate of models that start from a BERT.
        post_learning_rate: learning rate of the post-trainings.
        lstm_rate: learning rate of DualLSTM and ESIM.
        auxiliary_weight, consistency_margin: of the paper's equations 10 and 9; its text lacks
            their values.
    """

    context_turns: int
    context_tokens: int
    response_tokens: int
    sessions: int
    steps: int | None
    post_steps: int | None
    evaluations: int
    dev_samples: int
    learning_rate: float
    post_learning_rate: float
    lstm_rate: float
    auxiliary_weight: float = 1.0
    consistency_margin: float = 0.6


SIZES = {
    # The last 6 turns and 64 + 24 tokens take a seventh of the time of 448 + 64. With 8 sessions
    # per step, a core trains a BERT in 4 to 7 minutes; after a third of these steps no two models
    # with a BERT can be told apart. Each of the two dev evaluations ranks 600 responses, of 60
    # sessions. A BERT's learning rates and the weight of the tasks are the best of 200 steps on dev
    # dialogues of chit-chat; models from random weights use 1e-3, the order of Lowe et al.
    "small": Size(6, 64, 24, 8, 600, 200, 2, 60, 1e-4, 1e-5, 1e-3, 0.1),
    # Section 3.3; the learning rate is the task's default.
    "paper": Size(20, 448, 64, 16, None, None, 40, 2000, 3e-5, 3e-5, 1e-3),
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """What is known about a corpus, whatever its files.

    Attributes:
        title: the title in reports.
        language: "english" or "chinese".
        longest: the length in tokens to which size small cuts utterances.
        min_turns: sessions with fewer turns are left out.
        dev_share, test_share: shares of the sessions that become the drawn groups of dev and test.
        paper: the corpus of the paper whose figures are shown beside ours; "" for none.
        order: the corpus of the paper whose order of the models is compared with ours.
    """

    title: str
    language: str
    longest: int
    min_turns: int
    dev_share: float
    test_share: float
    paper: str
    order: str


# The drawn test sets have about 200, 650 and 360 groups, one per session, and the dev sets 100, 330
# and 360. Fewer groups cannot tell models apart, and 1,000 groups of 10 take a small encoder
# minutes on 2 cores. A corpus with a large test file does not need as many drawn groups.
KINDS = {
    "ecd": Kind("ECD", "chinese", 50, 4, 0.1, 0.2, "ecd", "ecd"),
    "chitchat": Kind("chitchat", "english", 32, 4, 0.1, 0.2, "", "ubuntu"),
    "sgd": Kind("SGD", "english", 32, 4, 0.03, 0.03, "", "ubuntu"),
    "ubuntu": Kind("Ubuntu", "english", 50, 4, 0.01, 0.01, "ubuntu", "ubuntu"),
}


@dataclasses.dataclass(frozen=True)
class SelectionCorpus:
    """A corpus as given on the command line.

    Attributes:
        name: a key of `KINDS`.
        train: the only files used for training, each entry "FORMAT:FILE,FILE".
        test: "FORMAT:FILE" of grouped candidates; "" to use only drawn ones.
        encoder: the checkpoint; "" for an encoder made from `SelectionSettings.chinese_text`.
    """

    name: str
    train: tuple[str, ...]
    test: str
    encoder: str

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]


@dataclasses.dataclass(frozen=True)
class SelectionSettings:
    """The validated settings of an experiment.

    Attributes:
        size: "small" or "paper".
        figures: the size's settings, with changes by flags.
        work_dir: the folder that everything is written to.
        corpora: the corpora, in the order of execution.
        seeds: seeds of the models' own training; they share one post-training.
        chinese_text: other Chinese dialogues, each entry "FORMAT:FILE", for the encoder that
            Chinese models start from if there is no checkpoint.
        mlm_steps: training steps of that encoder.
        train_flags: further flags for every model's own training.
        compute_dtype: of every training of a BERT, its post-training too; "" for the default.
    """

    size: str
    figures: Size
    work_dir: pathlib.Path
    corpora: tuple[SelectionCorpus, ...]
    seeds: tuple[int, ...]
    chinese_text: tuple[str, ...]
    mlm_steps: int
    train_flags: tuple[str, ...]
    compute_dtype: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `read_settings` reads."""
    add = parser.add_argument
    add("--work_dir", required=True, type=pathlib.Path, help="folder to write everything to")
    add(
        "--size",
        choices=SIZES,
        default="small",
        help="small: contexts of 64 tokens, a few hundred steps, for 2 CPU cores; paper: "
        "BERT-base, 448 tokens, 10 epochs, for full corpora and GPUs",
    )
    for name, kind in KINDS.items():
        add(
            f"--{name}_train",
            nargs="+",
            default=[],
            metavar="FORMAT:FILE",
            help=f"{kind.title}: files of dialogues and their formats, as in prepare_data",
        )
        add(
            f"--{name}_test",
            default="",
            metavar="FORMAT:FILE",
            help=f"{kind.title}: a file of grouped candidates; without it, only drawn ones",
        )
    add("--corpora", nargs="+", choices=KINDS, help="only these, in this order")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    names = [row.name for row in ROWS]
    add("--rows", nargs="+", choices=names, default=names, help="only these")
    add("--steps", type=int, help="steps of every model's own training")
    add("--post_steps", type=int, help="steps of each post-training")
    add("--learning_rate", type=float, help="for the models that start from a BERT")
    add("--post_learning_rate", type=float, help="for the post-trainings")
    add("--auxiliary_weight", type=float, help="weight of each auxiliary task's loss")
    add("--consistency_margin", type=float, help="margin of the consistency discrimination loss")
    add(
        "--chinese_text",
        nargs="+",
        default=[],
        metavar="FORMAT:FILE",
        help="small: other Chinese dialogues, on which an encoder is trained by masked language "
        "modelling if --chinese_encoder is not given",
    )
    add("--mlm_steps", type=int, default=3000, help="training steps of that encoder")
    add("--chinese_encoder", default="", help="paper: default bert-base-chinese")
    add("--english_encoder", default="", help=f"small: {MINILM}; paper: bert-base-uncased")
    add("--train_flags", default="", help="further flags of train for all models, in quotes")
    add(
        "--compute_dtype",
        default="",
        choices=("float32", "bfloat16"),
        help="of every training of a BERT, its post-training too",
    )


def read_settings(options: argparse.Namespace) -> SelectionSettings:
    """Makes the settings from a command line.

    Raises:
        SettingsError: a file is missing, a value cannot be used, or there is no corpus.
    """
    given = {name: _read_corpus(name, options) for name in KINDS}
    known = {name: corpus for name, corpus in given.items() if corpus}
    if not known:
        raise SettingsError("no corpus: give --ecd_train, for one")
    asked = list(dict.fromkeys(options.corpora or known))
    for name in asked:
        if name not in known:
            raise SettingsError(f"--corpora={name}: --{name}_train is needed")
    check_numbers(options, "steps", "post_steps", "mlm_steps")
    chinese_text = tuple(
        read_source(text, "chinese_text", list_dialogue_formats()) for text in options.chinese_text
    )
    if not chinese_text and any(not known[name].encoder for name in asked):
        raise SettingsError("a Chinese corpus: give --chinese_encoder or --chinese_text")
    rates = ("learning_rate", "post_learning_rate")
    changed = ("steps", "post_steps", *rates, "auxiliary_weight", "consistency_margin")
    values = {name: getattr(options, name) for name in changed}
    figures = dataclasses.replace(
        SIZES[options.size], **{n: value for n, value in values.items() if value is not None}
    )
    return SelectionSettings(
        options.size,
        figures,
        options.work_dir,
        tuple(known[name] for name in asked),
        tuple(options.seeds),
        chinese_text,
        options.mlm_steps,
        read_job_flags(options.train_flags, "train_flags"),
        options.compute_dtype,
    )


def _read_corpus(name: str, options: argparse.Namespace) -> SelectionCorpus | None:
    """Reads a corpus' flags; None if none of its files is given."""
    train, test = getattr(options, f"{name}_train"), getattr(options, f"{name}_test")
    if not train:
        if test:
            raise SettingsError(f"--{name}_train is needed too")
        return None
    formats = list_dialogue_formats()
    sources = tuple(read_source(text, f"{name}_train", formats) for text in train)
    groups = read_source(test, f"{name}_test", CANDIDATE_FORMATS) if test else ""
    files = [path for source in sources for path in source.partition(":")[2].split(",")]
    if groups and groups.partition(":")[2] in files:
        raise SettingsError(f"--{name}_train: the test file is among the training files")
    language = KINDS[name].language
    defaults = {
        "small": {"english": MINILM, "chinese": ""},
        "paper": {"english": "bert-base-uncased", "chinese": "bert-base-chinese"},
    }
    encoder = getattr(options, f"{language}_encoder") or defaults[options.size][language]
    return SelectionCorpus(name, sources, groups, locate_encoder(encoder))
