"""What the command line says: the texts of --help, and messages with options spelled as flags."""

import dataclasses
import re
import textwrap
from collections.abc import Mapping, Sequence

from dcse_tf.arguments import list_presets, read_flags
from dcse_tf.options import Options, show

HELP = {"--help", "-h", "-help", "help"}
# Groups of options in their order, those of plug-ins follow; and headings other than their names.
_GROUPS = (
    *("main", "batches and context", "", "encoder", "optimizer", "evaluation"),
    *("log and checkpoints", "devices and speed"),
)
_HEADINGS = {"main": "Main flags", "": "What is learnt", "evaluation": "Evaluation on dev data"}
_PRESET = (
    "Settings that apply where nothing else is given: a preset, or several with commas between."
)
_FLAG_FILE = (
    "File with a flag a line and comments after #. Names of flag files in it are relative to it. "
    "Of a repeated flag, the last counts."
)
_BACKTICKS = re.compile("`([a-z][a-z0-9_]*)`")
_LONGEST_MESSAGE = 1000  # characters


def list_jobs(summaries: Mapping[str, str]) -> str:
    """The text of `dcse --help`; `summaries` says of each job what it does."""
    presets = {"presets": "Lists settings for the jobs, by the names that --preset takes."}
    lines = [f"  {job:18}{summary}" for job, summary in {**summaries, **presets}.items()]
    usage, more = "usage: dcse JOB --flag=value ...\n", "\ndcse JOB --help lists its flags."
    return "\n".join([usage, *lines, more])


def describe_job(job: str, summary: str, kind: type[Options], arguments: Sequence[str]) -> str:
    """The text of `dcse JOB --help`.

    If the class of its options stands for several, such as those of the training tasks, the text is
    that of the one that the other arguments choose, or of the first.
    """
    chooser, entries = kind.choice()
    usage = f"usage: dcse {job} {f'{chooser.upper()} ' if chooser else ''}--flag=value ..."
    parts = [usage, summary]
    if chooser:
        lines = (f"  {name:20}{entry.help}" for name, entry in entries.items())
        parts.append("\n".join([f"Each {chooser.upper()} has its own flags:", *lines]))
        arguments = arguments or [next(iter(entries))]
    chosen, _ = read_flags(kind, job, arguments)

    groups: dict[str, list[str]] = {group: [] for group in _GROUPS}
    for field in dataclasses.fields(chosen):
        if field.name != chooser:
            groups.setdefault(field.metadata["group"], []).append(_describe_option(field))
    presets = list_presets(job)
    first = groups["main"] or groups[""]
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
    indent = " " * 6
    return f"  {flag}\n" + textwrap.fill(text, 98, initial_indent=indent, subsequent_indent=indent)


def as_flags(message: str) -> str:
    """Rewrites options in backticks in a message as flags: `seed` becomes --seed."""
    return _BACKTICKS.sub(r"--\1", message)


def one_line(error: BaseException) -> str:
    """An error's message as one printable line of bounded length."""
    text = as_flags(str(error)[: 2 * _LONGEST_MESSAGE])
    return show(" ".join(text.splitlines()), _LONGEST_MESSAGE)
