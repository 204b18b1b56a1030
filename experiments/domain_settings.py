"""The settings of a domain experiment: dialogues, sets, rows, seeds, budgets."""

import argparse
import dataclasses
import pathlib

from domain_rows import LEVERS, NAME, ROWS, DomainRow, parse_row
from settings import (
    MINILM,
    SettingsError,
    check_numbers,
    list_dialogue_formats,
    locate_encoder,
    read_files,
    read_job_flags,
    read_source,
)

from dcse_tf.sets.options import TABLE_FORMATS

# Language -> length in tokens to which utterances are cut.
_LONGEST = {"english": 32, "chinese": 50}


@dataclasses.dataclass(frozen=True)
class RetrievalFile:
    """A semantic retrieval set that models are scored on.

    Attributes:
        name: used in folders and tables.
        file: a select.txt, or a table of labelled sentences from which one is built.
        column: the table's column of labels; "" for a select.txt.
    """

    name: str
    file: str
    column: str = ""


@dataclasses.dataclass(frozen=True)
class DomainSettings:
    """The validated settings of an experiment. Paths are absolute.

    Attributes:
        name: the name of the domain, used in folders and the report.
        work_dir: the folder that everything is written to.
        train: the dialogues, each entry "FORMAT:FILE,FILE".
        encoder: the start; "" for one made from `chinese_text`.
        longest: the length in tokens to which utterances are cut.
        min_turns: sessions with fewer turns are left out.
        domain: the domain's own sets, labelled by intent or by act.
        guards: sets of other domains.
        chinese_text: Chinese dialogues that a start is made from, each entry "FORMAT:FILE".
        mlm_steps: training steps of that start.
        rows: the rows to measure.
        known: all known rows, with which the measured ones may share runs.
        seeds: seeds of the trainings.
        steps: steps of every training.
        train_flags: further flags for every training.
        half: the half of the sets: "report", or "choose" for comparing settings.
    """

    name: str
    work_dir: pathlib.Path
    train: tuple[str, ...]
    encoder: str
    longest: int
    min_turns: int
    domain: tuple[RetrievalFile, ...]
    guards: tuple[RetrievalFile, ...]
    chinese_text: tuple[str, ...]
    mlm_steps: int
    rows: tuple[DomainRow, ...]
    known: tuple[DomainRow, ...]
    seeds: tuple[int, ...]
    steps: int
    train_flags: tuple[str, ...]
    half: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `read_settings` reads."""
    add = parser.add_argument
    add("--work_dir", required=True, type=pathlib.Path, help="folder to write everything to")
    add("--name", required=True, help="name of the domain, used in folders and the report")
    add(
        "--train",
        nargs="+",
        required=True,
        metavar="FORMAT:FILE",
        help="files of dialogues and their formats, as in prepare_data; a tenth of the dialogues "
        "is held out for choosing settings, another tenth for reporting",
    )
    add("--intent_file", default="", help="select.txt of the domain, labelled by intent")
    add("--act_file", default="", help="select.txt of the domain, labelled by dialogue act")
    add(
        "--guards",
        nargs="*",
        default=[],
        metavar="NAME:FILE",
        help="select.txt of other domains, on which scores must not fall; or NAME:FILE.csv:COLUMN, "
        "a table with a column text and labels in COLUMN, of which 2,000 sentences become a set",
    )
    add("--language", choices=_LONGEST, default="english", help="utterances are cut at 32 or 50")
    add("--min_turns", type=int, default=4, help="leave out dialogues with fewer turns")
    add("--encoder", default="", help=f"the start; default, English: {MINILM}")
    add(
        "--chinese_text",
        nargs="+",
        default=[],
        metavar="FORMAT:FILE",
        help="Chinese, without --encoder: dialogues on which the start is trained by masked "
        "language modelling",
    )
    add("--mlm_steps", type=int, default=3000, help="training steps of that start")
    add(
        "--rows",
        nargs="+",
        choices=[row.name for row in ROWS],
        default=[row.name for row in ROWS if row not in LEVERS],
        help="rows to measure, besides --row; default: all except the levers",
    )
    add(
        "--row",
        action="append",
        default=[],
        metavar="'NAME=FLAGS'",
        help="a further row: flags of train, which override those of this experiment except for "
        "files, encoder and seed; after the words mine:, merge:, fit: and evaluate:, flags of "
        "mine_neighbours, merge, fit_baseline and evaluate",
    )
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--steps", type=int, default=300, help="steps of every training")
    add("--train_flags", default="", help="further flags of train for all rows, in quotes")
    add(
        "--half",
        choices=("report", "choose"),
        default="report",
        help="half of the sets and held-out dialogues: report, or choose to compare settings",
    )


def read_settings(options: argparse.Namespace) -> DomainSettings:
    """Makes the settings from a command line.

    Raises:
        SettingsError: a file is missing, or a value cannot be used.
    """
    check_numbers(options, "steps", "mlm_steps", "min_turns")
    if not NAME.fullmatch(options.name):
        raise SettingsError(f"--name={options.name}: expected letters and digits")
    given = {"intent": options.intent_file, "act": options.act_file}
    domain = tuple(
        RetrievalFile(name, *read_files([file], f"{name}_file"))
        for name, file in given.items()
        if file
    )
    guards = tuple(map(_read_guard, options.guards))
    if not (domain or guards):
        raise SettingsError("no retrieval set: give --intent_file or --act_file, or else --guards")
    names = [guard.name for guard in guards]
    if len(set(names)) < len(names) or set(names) & set(given):
        raise SettingsError(f"--guards: expected different names, not {', '.join(names)}")
    encoder = locate_encoder(options.encoder or (MINILM if options.language == "english" else ""))
    if not (encoder or options.chinese_text):
        raise SettingsError("--language=chinese: give --encoder or --chinese_text")
    added, formats = tuple(map(parse_row, options.row)), list_dialogue_formats()
    known = (*ROWS, *added)
    if len({row.name for row in known}) < len(known):
        raise SettingsError(f"--row: expected names other than {', '.join(r.name for r in ROWS)}")
    return DomainSettings(
        name=options.name,
        work_dir=options.work_dir.resolve(),
        train=tuple(read_source(text, "train", formats) for text in options.train),
        encoder=encoder,
        longest=_LONGEST[options.language],
        min_turns=options.min_turns,
        domain=domain,
        guards=guards,
        chinese_text=tuple(
            read_source(text, "chinese_text", formats) for text in options.chinese_text
        ),
        mlm_steps=options.mlm_steps,
        rows=(*(row for row in ROWS if row.name in options.rows), *added),
        known=known,
        seeds=tuple(options.seeds),
        steps=options.steps,
        train_flags=read_job_flags(options.train_flags, "train_flags"),
        half=options.half,
    )


def _read_guard(text: str) -> RetrievalFile:
    name, _, rest = text.partition(":")
    file, _, column = rest.partition(":")
    table = pathlib.Path(file).suffix.removeprefix(".") in TABLE_FORMATS
    if not name or not file or table != bool(column):
        raise SettingsError(f"--guards={text}: expected NAME:FILE, or NAME:FILE.csv:COLUMN")
    return RetrievalFile(name, *read_files([file], "guards"), column)
