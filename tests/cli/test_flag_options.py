"""The command lines as a shell sees them, up to the point where the job would begin."""

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from dcse_tf.baselines.registry import BASELINES
from dcse_tf.cli.commands import COMMANDS
from dcse_tf.cli.flags import as_flags, find_files, list_fields, parse_flags
from dcse_tf.cli.presets import list_presets
from dcse_tf.data.options import PrepareOptions
from dcse_tf.errors import InputError
from dcse_tf.options import OptionError
from dcse_tf.tasks import TASKS
from dcse_tf.tasks.options import TrainOptions

ROOT = pathlib.Path(__file__).parents[2]
JOBS = {job: options for job, (options, _) in COMMANDS.items()}
# The job that a flag file is for, by the file's name.
FLAG_FILES = {
    "prepare": "prepare_data",
    "dialogue_cse": "train",
    "mlm": "train",
    **dict.fromkeys(("dialogue_cse_i1", "cosine", "dse", "simcse", "recommended"), "train"),
    "in_domain": "train",
    "task_oriented": "train",
    **dict.fromkeys(("siamese_single", "siamese_multi", "fine_grained"), "train"),
    "debug": "any",
    "evaluate": "evaluate",
    "retrieval": "build_retrieval",
    "sts": "build_sts",
}
# Settings that cannot be left out, and flags that name the others.
REQUIRED = [
    ("search", "model", ["--corpus=texts.txt"]),
    ("prepare_data", "input", ["--output_dir=out", "--vocab_size=100"]),
    ("prepare_data", "output_dir", ["--input=a.tsv", "--vocab_size=100"]),
    ("train", "data_dir", ["--run_dir=run", "--encoder_size=tiny"]),
    ("evaluate", "model", ["--sts=sts.txt"]),
    ("embed", "output", ["--model=run", "--input=in.txt"]),
    ("explain", "model", ["--input=test.jsonl", "--output_dir=out"]),
    ("serve", "model", ["--port=0"]),
    ("export", "run_dir", ["--output_dir=out"]),
    ("inspect_data", "output_dir", ["--input=a.tsv"]),
    ("build_retrieval", "output", ["--input=a.csv"]),
    ("build_candidates", "output", ["--input=a.tsv"]),
    ("build_sts", "output_dir", ["--input=a.csv"]),
    ("merge_sts", "sheets", ["--output=sts.txt"]),
    ("changes", "after", ["--before=bert", "--data_dir=data"]),
    ("merge", "start", ["--trained=run", "--output_dir=out"]),
    ("compare", "results", []),
    ("fit_baseline", "kind", ["--output_dir=out"]),
    ("fit_baseline", "output_dir", ["--kind=word_vectors", "--word_vectors=glove.txt"]),
]
IMPORTS = """
import sys
import importlib, pathlib
import dcse_tf
for path in pathlib.Path(dcse_tf.__file__).parent.glob("cli/*.py"):
    importlib.import_module(f"dcse_tf.cli.{path.stem}")
heavy = {"tensorflow", "tensorflow_text", "keras", "keras_hub", "transformers"}
print(sorted(heavy & set(sys.modules)))
"""


def run(environment, *arguments, folder=ROOT):
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def read_help(printed):
    """Flag -> its help without white space, for lines are broken anywhere."""
    parts = re.split(r"^  --(?:\[no\])?(\w+):", printed, flags=re.MULTILINE)
    return {name: re.sub(r"\s+", "", text) for name, text in zip(parts[1::2], parts[2::2])}


@pytest.mark.parametrize("job", JOBS)
def test_help_lists_every_setting_and_starts_no_tensorflow(job, no_tensorflow):
    done = run_help(job, no_tensorflow)
    assert "TensorFlow was started" not in done.stdout + done.stderr
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: dcse {job} ")
    flags = read_help(done.stdout)
    assert {"flagfile", "preset"} <= set(flags)
    for field in list_fields(JOBS[job]):
        help_text = field.metadata["help"]
        assert len(help_text) > 10, field.name
        assert re.sub(r"\s+", "", as_flags(help_text)) in flags[field.name]
        assert ("Required." in flags[field.name]) == field.metadata["required"]


def test_the_job_itself_starts_tensorflow(no_tensorflow):
    """Holds the stand-in that the other tests rely on."""
    flags = [f"--input={__file__}", "--output_dir=out", "--vocab_size=100"]
    done = run(no_tensorflow, "-m", "dcse_tf.cli.prepare_data", *flags)
    assert "TensorFlow was started" in done.stderr


@pytest.mark.parametrize("job", JOBS)
def test_an_unknown_flag_fails(job, no_tensorflow):
    done = run(no_tensorflow, "-m", f"dcse_tf.cli.{job}", "--tempo=1")
    assert done.returncode != 0
    assert "Unknown command line flag 'tempo'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("job", "missing", "others"), REQUIRED)
def test_a_missing_required_flag_is_one_line(job, missing, others, no_tensorflow):
    done = run(no_tensorflow, "-m", f"dcse_tf.cli.{job}", *others)
    assert done.returncode == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"error: --{missing} is required: ")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--shards=0", "error: --shards=0: expected at least 1"),
        ("--vocab=./bert", "error: give either --vocab (a checkpoint) or --vocab_size (train one)"),
    ],
)
def test_a_setting_out_of_range_is_one_line(flag, message, no_tensorflow):
    flags = ["--input=a.tsv", "--output_dir=out", "--vocab_size=100", flag]
    done = run(no_tensorflow, "-m", "dcse_tf.cli.prepare_data", *flags)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [message]


@pytest.mark.parametrize("flag", ["--shards=many", "--format=csv", "--overwrite=perhaps"])
def test_a_flag_of_another_type_fails(flag, no_tensorflow):
    done = run(no_tensorflow, "-m", "dcse_tf.cli.prepare_data", flag)
    assert done.returncode != 0
    assert flag.split("=")[0].removeprefix("--") in done.stderr
    assert "Traceback" not in done.stderr


# Of the jobs that have a family of these: what a command line makes.
CHOSEN = [entry.options for entry in (*TASKS.values(), *BASELINES.values())]


@pytest.mark.parametrize("config", [*JOBS.values(), *CHOSEN], ids=lambda config: config.__name__)
def test_a_file_that_is_not_there_is_named_before_anything_is_loaded(config, tmp_path):
    """A setting that the job reads and that is no checkpoint's, data's or run's folder."""
    fields = dataclasses.fields(config)
    names = [field.name for field in fields if field.metadata["files"]]
    read = {field.name for field in fields if field.metadata["reads"]}
    folders = {"model", "reranker", "encoder", "vocab", "data_dir", "run_dir"}
    folders |= {"before", "after", "start", "trained", "data_report"}
    assert read - folders <= set(names)
    for name in names:
        for missing, problem in (
            (f"{tmp_path}/none.txt", "no such file"),
            (f"{tmp_path}/*.txt", "no such file"),
            (f"{tmp_path}", "is a folder"),
        ):
            settings = object.__new__(config)  # whose other settings nobody checks
            for field in fields:
                object.__setattr__(settings, field.name, field.default)
            many = isinstance(getattr(settings, name), tuple)
            object.__setattr__(settings, name, (__file__, missing) if many else missing)
            with pytest.raises(InputError, match=re.escape(f"`{name}`={missing}: {problem}")):
                find_files(settings)


def test_a_missing_file_is_one_line_and_starts_no_tensorflow(no_tensorflow):
    flags = ["--data_dir=data", "--run_dir=run", "--encoder_size=tiny", "--dev_sts=none.txt"]
    done = run(no_tensorflow, "-m", "dcse_tf.cli.train", *flags)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["error: --dev_sts=none.txt: no such file"]


def test_importing_the_package_starts_no_tensorflow():
    done = run({**os.environ}, "-c", IMPORTS)
    assert done.stdout == "[]\n", done.stderr


def test_every_job_has_a_module_to_be_run_by():
    found = {path.stem for path in (ROOT / "dcse_tf/cli").glob("*.py")}
    assert found == {*JOBS, "__init__", "commands", "flags", "launch", "presets", "queries"}


def test_the_console_script_lists_its_jobs_and_runs_them(no_tensorflow):
    def dcse(*arguments):
        script = "from dcse_tf.cli.commands import main; main()"
        return run(no_tensorflow, "-c", script, *arguments)

    listed = dcse("--help").stdout
    assert set(re.findall(r"^  (\w+) ", listed, re.MULTILINE)) == {*JOBS, "launch", "presets"}
    assert dcse().stdout == listed
    assert dcse("train", "--help").stdout == run_help("train", no_tensorflow).stdout
    assert dcse("--version").stdout.strip().count(".") == 2
    for wrong in ("trian", "--tempo=1"):
        done = dcse(wrong)
        assert done.returncode == 1
        assert done.stderr.splitlines() == [f"error: {wrong} is not a job; dcse --help lists them"]
    assert re.search("^  recommended +train ", dcse("presets").stdout, re.MULTILINE)


@pytest.mark.parametrize("arguments", [["train", "--help"], ["presets"]], ids=" ".join)
def test_a_reader_who_has_gone_ends_the_output_without_a_word(no_tensorflow, arguments):
    command = [sys.executable, "-c", "from dcse_tf.cli.commands import main; main()", *arguments]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command, env=no_tensorflow, stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def run_help(job, environment):
    return run(environment, "-m", f"dcse_tf.cli.{job}", "--help")


@pytest.mark.parametrize(
    "path", sorted((ROOT / "flags").rglob("*.flags")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_a_flag_file_is_a_preset_of_its_job(path, tmp_path, monkeypatch):
    """From any folder, whatever file it names in turn."""
    monkeypatch.chdir(tmp_path)
    name = path.relative_to(ROOT / "flags").with_suffix("").as_posix()
    (preset,) = [preset for preset in list_presets() if preset.name == name]
    assert preset.job == FLAG_FILES[path.stem]
    assert len(preset.summary) <= 90
    assert preset.summary.endswith(".")
    for job in JOBS if preset.job == "any" else [preset.job]:
        assert preset in list_presets(job)
        # The settings that only the user can give are missing; all others were understood.
        for flag in (f"--preset={name}", f"--flagfile={path}"):
            with pytest.raises(OptionError, match=r"^`\w+` is required: "):
                parse_flags(JOBS[job], job, [flag])


NEEDED = ["--data_dir=data", "--run_dir=run", "--encoder_size=tiny"]


def train_options(*arguments):
    return parse_flags(TrainOptions, "train", [*arguments, *NEEDED])


def test_a_preset_gives_what_nothing_else_gives(tmp_path):
    """flags/debug.flags has 4 steps and 2 negatives, flags/recommended.flags a weight of 0.8."""
    file = tmp_path / "own.flags"
    file.write_text("--steps=7\n--preset=debug\n")
    for arguments in (
        ["--steps=7", "--preset=debug"],
        ["--preset", "debug", "--steps=7"],
        [f"--flagfile={file}"],
        ["--flagfile", str(file), "--preset=debug"],
    ):
        options = train_options(*arguments)
        assert (options.steps, options.negatives) == (7, 2)
    for arguments in (
        ["--preset=recommended,debug"],
        ["--preset=recommended", "--preset=debug"],
    ):
        options = train_options(*arguments)
        assert (options.steps, options.negatives, options.cosine_weight) == (4, 2, 0.8)
    # Of several the last counts: the paper's recipe, which the other begins with, has 9 negatives.
    assert train_options("--preset=debug,dialogue_cse").global_batch_size == 20


@pytest.mark.parametrize(
    ("job", "arguments"),
    [
        ("evaluate", ["--model=run", "--retrieval=select.txt"]),
        ("evaluate", ["--model=run", "--candidates_file=groups.jsonl"]),
        ("evaluate", ["--model=run", "--response_selection=test.jsonl"]),
        ("merge", ["--start=bert", "--trained=run", "--output_dir=out"]),
        ("changes", ["--before=bert", "--after=run", "--data_dir=data"]),
        ("build_candidates", ["--input=a.tsv", "--output=b.jsonl"]),
    ],
)
def test_the_preset_for_all_jobs_has_nothing_that_one_refuses(job, arguments):
    parse_flags(JOBS[job], job, ["--preset=debug", *arguments])


@pytest.mark.parametrize("name", ["nothing", "", "ecd/sts", "../flags/debug", "debug.flags"])
def test_an_unknown_preset_is_refused_with_those_known(name, no_tensorflow):
    done = run(no_tensorflow, "-m", "dcse_tf.cli.train", f"--preset={name}", *NEEDED)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: --preset={name}: ")
    known = line.split(": ")[2]
    assert "recommended" in known
    assert "ecd/mlm" in known
    assert "ecd/sts" not in known  # another job's


def test_flag_files_stand_in_the_place_of_their_names(tmp_path, monkeypatch):
    """The last of several values counts, and a name in a file is relative to the file."""
    (tmp_path / "flags/below").mkdir(parents=True)
    files = {
        "flags/own.flags": "# own\n--shards=2\n--flagfile=below/near.flags\n--seed=2\n",
        "flags/below/near.flags": "// near\n\n--shards=3\n--seed=3\n--flagfile\n../far.flags\n",
        "flags/far.flags": "  --workers=4  \n--seed=4\n",
        "far.flags": "--workers=9\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    needed = ["--input=a.tsv", "--output_dir=out", "--vocab_size=100"]
    given = ["--shards=1", "--flagfile=flags/own.flags", "--dev_fraction=0.2", *needed]
    options = parse_flags(PrepareOptions, "prepare_data", given)
    assert (options.shards, options.seed, options.workers) == (3, 2, 4)
    assert options.dev_fraction == 0.2


def test_a_flag_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "own.flags"
    path.write_text("--shards=2\r\n--seed=3\r\n", encoding="utf-8-sig")
    given = [f"--flagfile={path}", "--input=a.tsv", "--output_dir=out", "--vocab_size=100"]
    options = parse_flags(PrepareOptions, "prepare_data", given)
    assert (options.shards, options.seed) == (2, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--flagfile=none.flags", "--flagfile={0}/none.flags cannot be read: .*No such file"),
        ("--flagfile=../flags/a.flags", "--flagfile={0}/../flags/a.flags: the file names itself"),
        ("--flagfile=", "--flagfile={0}/ cannot be read"),
        ("--flagfile", "--flagfile={0}/ cannot be read"),
    ],
)
def test_a_file_that_a_flag_file_cannot_name(text, message, tmp_path):
    path = tmp_path / "flags/a.flags"
    path.parent.mkdir()
    path.write_text(f"{text}\n")
    with pytest.raises(OptionError, match=message.format(re.escape(str(path.parent)))):
        parse_flags(PrepareOptions, "prepare_data", [f"--flagfile={path}"])


@pytest.mark.parametrize(
    ("job", "output"),
    [
        ("build_retrieval", "--output={}/select.txt"),
        ("build_sts", "--output_dir={}/sheets"),
    ],
)
def test_building_evaluation_sets_starts_no_tensorflow(job, output, no_tensorflow, tmp_path):
    table = tmp_path / "queries.csv"
    rows = [f"where is parcel {n},parcel\nthe refund for {n} please,refund" for n in range(9)]
    table.write_text("text,intent\n" + "\n".join(rows) + "\n")
    flags = [f"--input={table}", output.format(tmp_path)]
    done = run(no_tensorflow, "-m", f"dcse_tf.cli.{job}", *flags)
    assert done.returncode == 0, done.stderr


def test_a_number_may_be_given_as_its_word(no_tensorflow, tmp_path):
    """Both are refused for the same reason, later: no such data."""
    flags = ["--data_dir=none", f"--run_dir={tmp_path}/run", "--encoder_size=tiny"]
    for value in ("all", "0", "3"):
        done = run(no_tensorflow, "-m", "dcse_tf.cli.train", *flags, f"--negatives={value}")
        assert "TensorFlow was started" in done.stderr, done.stderr
    done = run(no_tensorflow, "-m", "dcse_tf.cli.train", *flags, "--negatives=some")
    assert "TensorFlow was started" not in done.stderr
    assert "negatives" in done.stderr
