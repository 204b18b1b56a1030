"""The command line up to where a job begins: help, flags, flag files, presets, refusals."""

import dataclasses
import io
import os
import re
import signal
import subprocess
import sys

import pytest

from dcse_tf.arguments import list_presets, parse_flags, read_flags
from dcse_tf.cli import commands
from dcse_tf.cli.commands import JOBS, list_options, load_options, main
from dcse_tf.data.corpus import PrepareOptions
from dcse_tf.errors import EXIT_STATUS
from dcse_tf.options import OptionError
from dcse_tf.tasks import TASKS
from dcse_tf.tasks.train_options import TrainOptions

TRAIN = ["--data_dir=data", "--run_dir=run", "--encoder_size=tiny"]
PREPARE = ["--input=a.tsv", "--output_dir=out", "--vocab_size=100"]
MOST_FLAGS = 45


def ask(capsys, *arguments):
    """The exit status, the output, and the error messages of a command."""
    status = 0
    try:
        main(arguments)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def train_options(*arguments):
    return parse_flags(TrainOptions, "train", [*arguments, *TRAIN])


@pytest.mark.parametrize(("command", "options"), list_options(), ids=lambda x: str(x))
def test_help_has_every_option_once_and_its_text(command, options, capsys):
    status, printed, _ = ask(capsys, *command.split(), "--help")
    assert status == 0
    assert printed.startswith(f"usage: dcse {command.split()[0]} ")
    named = re.findall(r"^  --(\w+)=", printed, re.MULTILINE)
    if options.choice()[0]:  # that of the first task or baseline
        return
    assert len({*named} - {"preset", "flagfile"}) <= MOST_FLAGS
    chooser = {"train": ["task"]}.get(command.split()[0], [])
    fields = {field.name: field for field in dataclasses.fields(options)}
    assert sorted([*named, *chooser]) == sorted([*fields, *({"preset"} & {*named}), "flagfile"])
    squeezed = re.sub(r"[\s`]|--", "", printed)
    for field in fields.values():
        assert len(field.metadata["help"]) > 10, field.name
        assert field.name in chooser or (
            re.sub(r"[\s`]|--", "", field.metadata["help"]) in squeezed
        ), field.name


def test_the_main_flags_of_a_training_come_first(capsys):
    _, printed, _ = ask(capsys, "train", "dialogue_cse", "--help")
    first = re.findall(r"^  --(\w+)=", printed, re.MULTILINE)[:10]
    assert {"data_dir", "encoder", "run_dir", "preset", "steps", "global_batch_size"} <= {*first}
    headings = re.findall(r"^(\w.*):$", printed, re.MULTILINE)
    assert headings.index("Main flags") < headings.index("Batches and context")
    assert headings.index("Encoder") < headings.index("Devices and speed")
    tasks = ("mlm", "--task=mlm", "--preset=mlm")
    named, *others = (ask(capsys, "train", task, "--help") for task in tasks)
    assert others == [named, named]


def test_the_jobs_are_listed_and_a_wrong_one_is_refused(capsys):
    _, listed, _ = ask(capsys, "--help")
    assert {*re.findall(r"^  (\w+) ", listed, re.MULTILINE)} == {*JOBS, "presets"}
    assert ask(capsys)[1] == listed
    assert re.search("^  recommended +train ", ask(capsys, "presets")[1], re.MULTILINE)
    status, _, said = ask(capsys, "trian")
    assert (status, said) == (1, "error: trian is not a job; dcse --help lists them\n")


PROGRAM = """
import sys
from dcse_tf.cli import commands
assert "numpy" not in sys.modules  # a tenth of a second, for `dcse --help`
for name, _ in commands.list_options():
    commands.main([*name.split(), "--help"])
import dcse_tf.api
heavy = {"tensorflow", "tensorflow_text", "keras", "keras_hub", "transformers"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
commands.main(["train", "--data_dir=d", "--run_dir=r", "--encoder_size=tiny", "--steps=-1"])
"""


def test_no_tensorflow_is_imported_before_a_job_begins():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stderr == "[]\nerror: --steps=-1: expected at least 0\n"
    assert done.returncode == 1


def test_a_reader_who_has_gone_ends_the_output_without_a_word():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "dcse_tf.cli", "train", "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_printed_is_in_utf_8_or_as_a_terminal_can(terminal, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), "latin-1")
    out.isatty = lambda: terminal
    monkeypatch.setattr(commands, "list_jobs", lambda: "é中")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["dcse"])
    main()
    assert out.buffer.getvalue() == (b"\xe9\\u4e2d\n" if terminal else "é中\n".encode())


def test_a_training_that_has_not_begun_its_steps_is_to_be_tried_again(monkeypatch):
    ask = lambda _: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    monkeypatch.setattr("dcse_tf.training.train.train", ask)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with pytest.raises(SystemExit) as ended:
        main(["train", *TRAIN])
    assert ended.value.code == EXIT_STATUS
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_IGN


# A command, and the flag or file that its message must name.
REFUSED = [
    ("search --corpus=texts.txt", "--model is required"),
    ("prepare_data --output_dir=out --vocab_size=100", "--input is required"),
    ("prepare_data --input=a.tsv --vocab_size=100", "--output_dir is required"),
    ("train --run_dir=run --encoder_size=tiny", "--data_dir is required"),
    ("fit_baseline --output_dir=out", "--kind is required"),
    ("fit_baseline word_vectors --word_vectors=glove.txt", "--output_dir is required"),
    (f"prepare_data --shards=0 {' '.join(PREPARE)}", "--shards=0"),
    ("prepare_data --shards=many", "shards"), ("prepare_data --format=csv", "format"),
    ("prepare_data --overwrite=perhaps", "overwrite"),
    ("prepare_data --input=a.tsv b.tsv", "b.tsv"),
    (f"train mlm --negatives=3 {' '.join(TRAIN)}", "negatives"),
    ("train translation", "--task=translation"),
    ("train --learning_rate=nan " + " ".join(TRAIN), "--learning_rate=nan"),
    ("train --weight_decay=inf " + " ".join(TRAIN), "--weight_decay=inf"),
    ("train --negatives=some " + " ".join(TRAIN), "negatives"),
    ("train --dev_sts=none.txt " + " ".join(TRAIN), "--dev_sts=none.txt: no such file"),
    ("train --preset=nothing", "--preset=nothing"), ("train --preset=ecd/sts", "--preset=ecd/sts"),
    ("train --preset=../flags/debug", "--preset=../flags/debug"),
    ("train --flagfile=none", "--flagfile=none"), ("evaluate --model=run --sts=a,,b", "--sts=a,,b"),
    ("embed --model=run --output=o --input=caf\udce9", r"--input=caf\udce9"),
    ("search --model=run --index=i --query help --top=0", "--top=0"),
    ("serve --model=run --host=.example", "--host=.example"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "named"), REFUSED)
def test_a_refusal_is_one_line_that_names_the_flag(command, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, printed, said = ask(capsys, *command.split())
    assert (status, printed) == (1, "")
    assert re.fullmatch("error: [^\n]+\n", said)
    assert named in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("job", JOBS)
def test_every_job_refuses_an_unknown_flag(job, capsys):
    status, _, said = ask(capsys, job, *(["centering"] if job == "fit_baseline" else []), "--tempo")
    assert status == 1
    assert "tempo" in said


@pytest.mark.parametrize("preset", list_presets(), ids=lambda preset: preset.name)
def test_a_preset_is_understood_by_its_job_from_any_folder(preset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(preset.summary) <= 90
    assert preset.summary.endswith(".")
    for job in JOBS if preset.job == "any" else [preset.job]:
        assert preset in list_presets(job)
        # What only the user can give is missing; everything else was understood.
        for flag in (f"--preset={preset.name}", f"--flagfile={preset.path}"):
            with pytest.raises(OptionError, match=r"^`\w+` is required: "):
                parse_flags(load_options(job), job, [flag])


@pytest.mark.parametrize("task", TASKS)
def test_the_preset_that_shrinks_any_job_is_taken_by_every_task(task):
    assert train_options("--preset=debug", f"--task={task}").steps == 4


def test_other_flags_override_a_preset_wherever_they_stand(tmp_path):
    """flags/debug.flags has 4 steps and 2 negatives, flags/recommended.flags a weight of 0.8."""
    file = tmp_path / "own.flags"
    file.write_text("--steps=7\n--preset=debug\n")
    for arguments in (
        ["--steps=7", "--preset=debug"],
        ["--preset", "debug", "--steps=7"],
        ["dialogue_cse", "--steps=7", "--preset=debug"],
        [f"--flagfile={file}"],
    ):
        options = train_options(*arguments)
        assert (options.steps, options.negatives) == (7, 2)
    for arguments in (["--preset=recommended,debug"], ["--preset=recommended", "--preset=debug"]):
        options = train_options(*arguments)
        assert (options.steps, options.negatives, options.cosine_weight) == (4, 2, 0.8)
    assert train_options("--preset=debug,dialogue_cse").global_batch_size == 20
    assert train_options("siamese_multi", "--preset=siamese_single").task == "siamese_multi"
    assert train_options("--negatives=all").negatives == 0
    # As train --average_with does, whatever in_domain was given.
    given = [*TRAIN[:2], "--encoder=e", "--rehearsal_texts=8", "--aggregation=attention"]
    given.append("--context_side=before")
    given = parse_flags(TrainOptions, "train", ["--preset=in_domain", *given])
    flags = read_flags(TrainOptions, "train", ["--preset=short_cosine"])[1]
    both = given.replace(**flags)
    assert (both.steps, both.context_side) == (75, "before")


def test_flag_files_stand_where_they_are_named(tmp_path, monkeypatch):
    """The last of several values counts, and a name in a file is relative to the file."""
    (tmp_path / "flags/below").mkdir(parents=True)
    files = {
        "flags/own.flags": "# own\n--shards=2\n--flagfile=below/near.flags\n--seed=2\n",
        "flags/below/near.flags": "// near\n\n--shards=3\r\n--seed=3\n--flagfile\n../far.flags\n",
        "flags/far.flags": "\ufeff  --max_sessions=4  \n--seed=4\n--prefix=query: \n",
        "far.flags": "--max_sessions=9\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    given = ["--shards=1", "--flagfile=flags/own.flags", "--dev_fraction=0.2", *PREPARE]
    options = parse_flags(PrepareOptions, "prepare_data", given)
    assert (options.shards, options.seed, options.max_sessions) == (3, 2, 4)
    assert (options.prefix, options.dev_fraction) == ("query: ", 0.2)


@pytest.mark.parametrize("text", ["--flagfile=none", "--flagfile=../flags/a", "--flagfile"])
def test_a_flag_file_that_cannot_be_read_or_names_itself_is_named(text, tmp_path):
    path = tmp_path / "flags/a"
    path.parent.mkdir()
    path.write_text(f"{text}\n")
    with pytest.raises(OptionError, match=f"--flagfile={re.escape(str(path.parent))}/"):
        parse_flags(PrepareOptions, "prepare_data", [f"--flagfile={path}"])
