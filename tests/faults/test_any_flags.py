"""Whatever a command line says, it is a configuration or one sentence that names the flag."""

import dataclasses
import pathlib
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcse_tf.arguments import parse_flags
from dcse_tf.baselines.registry import FitBaselineOptions
from dcse_tf.cli.commands import JOBS as COMMANDS
from dcse_tf.cli.commands import load_options
from dcse_tf.cli.help import one_line
from dcse_tf.data.options import PrepareOptions
from dcse_tf.evaluation.evaluate_options import CompareOptions, EvaluateOptions
from dcse_tf.exporting.export_options import ExportOptions
from dcse_tf.inspecting.inspect_options import ExplainOptions, InspectOptions
from dcse_tf.options import OptionError
from dcse_tf.search.search_options import EmbedOptions, SearchOptions
from dcse_tf.serving.serve import ServeOptions
from dcse_tf.sets.set_options import (
    BuildCandidatesOptions,
    BuildRetrievalOptions,
    BuildStsOptions,
    MergeStsOptions,
)
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.training.merge_options import MergeOptions

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parent.parent.parent
# The least that each job needs; what hypothesis draws comes behind it, and counts.
JOBS = {
    PrepareOptions: ["--input=a.tsv", "--output_dir=out", "--vocab_size=100"],
    TrainOptions: ["--data_dir=data", "--run_dir=run", "--encoder_size=tiny"],
    EvaluateOptions: ["--model=run", "--sts=sts.txt"],
    EmbedOptions: ["--model=run", "--input=in.txt", "--output=out.npy"],
    ExportOptions: ["--run_dir=run", "--output_dir=out"],
    InspectOptions: ["--input=a.tsv", "--output_dir=out"],
    BuildRetrievalOptions: ["--input=a.csv", "--output=select.txt"],
    BuildStsOptions: ["--input=a.csv", "--output_dir=out"],
    BuildCandidatesOptions: ["--input=a.jsonl", "--output=out.jsonl"],
    MergeStsOptions: ["--sheets=a.csv", "--output=sts.txt"],
    CompareOptions: ["--results=a.json,b.json"],
    MergeOptions: ["--start=start", "--trained=run", "--output_dir=out"],
    ExplainOptions: ["--model=run", "--input=a.jsonl", "--output_dir=out"],
    SearchOptions: ["--model=run", "--corpus=a.txt"],
    ServeOptions: ["--model=run"],
    FitBaselineOptions: ["--kind=flow", "--encoder=e", "--data_dir=d", "--output_dir=out"],
}
_NEEDED = {
    "prepare_data": JOBS[PrepareOptions],
    "train": JOBS[TrainOptions],
    "evaluate": JOBS[EvaluateOptions],
    "embed": JOBS[EmbedOptions],
    "build_sts": JOBS[BuildStsOptions],
}
# Settings that a message names where no single flag is wrong.
_TOGETHER = ("--encoder", "--vocab", "--retrieval", "--results", "--kind", "--strategies")
_ODD_NUMBERS = [
    "",
    "-1",
    "-0.0",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "2147483648",
    "9" * 25,
    "0x10",
    "٣",
]
_NUMBERS = st.one_of(
    st.sampled_from(["0", "1", "2", "5", "8", "100", "0.5", "1.0", "1e-5", "true", "all"]),
    st.sampled_from([*_ODD_NUMBERS, "1_0", " 7 ", "-" + "9" * 25, "9" * 5000]),
)
_ODD_TEXTS = [
    "a,,b",
    "a\0b",
    "\n",
    "\ud800",
    "\u2028",
    ",",
    '"a',
    "/",
    ".",
    "..",
    "--",
    "包裹",
    "*",
]
_TEXTS = st.one_of(
    st.sampled_from(
        [*_ODD_TEXTS, "", "\0", "a\nb", "\r\n\t", '"', "package:", "--seed=1", "%s", "{}"]
    ),
    st.sampled_from(["out", "run", "a.tsv", "data/", "out/../a.tsv", "a.npz", "dev/map", "intent"]),
    st.sampled_from(["unigram,unigram", "x" * 200_000, "a" * 100_000]),
)


def _values(field):
    choices = st.sampled_from([str(c) for c in field.metadata["choices"]] or ["x"])
    return st.one_of(choices, _NUMBERS, _TEXTS, st.text(max_size=8))


def _list_fields(job):
    return dataclasses.fields(job.choose("flow" if job is FitBaselineOptions else None))


def _command_lines(job):
    """Some flags with some value, some of them twice, misspelt, without a value or with a no."""
    names = st.sampled_from([field.name for field in _list_fields(job)])
    fields = {field.name: field for field in _list_fields(job)}
    with_value = names.flatmap(lambda n: _values(fields[n]).map(lambda value: f"--{n}={value}"))
    bare = names.flatmap(lambda n: st.sampled_from([f"--{n}", f"--no{n}", f"-{n}", f"--{n}s=1"]))
    others = st.sampled_from(
        [
            "stray",
            "--",
            "-",
            "",
            "--tempo=1",
            "---",
            "--=",
            "--flagfile=none",
        ]
    )
    return st.lists(st.one_of(*[with_value] * 8, bare, others), max_size=6)


@pytest.fixture(scope="module")
def opened():
    """The files opened, and folders made or listed, while `watch` is on."""
    found, watch = [], []

    def notice(event, arguments):
        if watch and event in ("open", "os.mkdir", "os.listdir", "os.scandir", "os.remove"):
            found.append(str(arguments[0]))

    sys.addaudithook(notice)
    return found, watch


def _read(job, arguments):
    return parse_flags(job, "job", arguments)


def _check(job, arguments, opened):
    """Holds what a command line may end in."""
    found, watch = opened
    del found[:]
    watch.append(True)
    try:
        made = _read(job, [*JOBS[job], *arguments])
    except OptionError as error:
        watch.clear()
        said = one_line(error)
        assert said.isprintable()
        assert 10 < len(said) <= 1100
        fields = [field.name for field in _list_fields(job)]
        known = {f"{dash}{name}" for name in fields for dash in ("--", " -")}
        # absl quotes what it does not know.
        names = {*known, *_TOGETHER, "--flagfile", "Unknown command line flag '", "is not a flag"}
        assert any(name in said for name in names), said
    else:
        watch.clear()
        assert type(made).from_dict(made.to_dict()) == made
        for field in dataclasses.fields(made):
            value = getattr(made, field.name)
            assert not isinstance(value, float) or abs(value) < 3.4e38, field.name
            assert not isinstance(value, int) or abs(value) < 2**31, field.name
            texts = value if isinstance(value, tuple) else (value,)
            assert all("\0" not in str(text).encode().decode() for text in texts), field.name
            assert "" not in texts[1:], field.name
    finally:
        watch.clear()
    assert [path for path in found if path != "none"] == []  # the flag file asked for


@pytest.mark.parametrize("job", JOBS)
def test_an_odd_value_of_any_flag_is_taken_or_named(job, opened):
    """A third of the values each: what a flag takes depends on its type, which many have."""
    assert _read(job, JOBS[job])
    for number, field in enumerate(_list_fields(job)):
        for value in (*_ODD_NUMBERS, *_ODD_TEXTS)[number % 3 :: 3]:
            _check(job, [f"--{field.name}={value}"], opened)


@pytest.mark.parametrize("job", JOBS)
def test_a_command_line_is_a_configuration_or_one_sentence(job, opened):
    @settings(max_examples=100, deadline=None)
    @given(_command_lines(job))
    def check(arguments):
        _check(job, arguments, opened)

    check()


@pytest.fixture(scope="module")
def shell(no_tensorflow, tmp_path_factory):
    """Runs a command line where importing TensorFlow would end it with another message."""
    work = tmp_path_factory.mktemp("work")

    def run(job, *arguments):
        command = [sys.executable, "-m", "dcse_tf.cli", job, *_NEEDED.get(job, ()), *arguments]
        done = subprocess.run(command, cwd=work, env=no_tensorflow, capture_output=True)
        assert list(work.iterdir()) == []
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return run


@pytest.mark.parametrize(
    ("job", "arguments", "message"),
    [
        (
            "prepare_data",
            ["--input=a.tsv", "b.tsv"],
            "'b.tsv' is not a flag: expected --flag=VALUE",
        ),
        ("prepare_data", ["--overwrite", "false"], "'false' is not a flag"),
        ("prepare_data", ["--shards=" + "9" * 5000], "flag --shards=9999"),
        ("train", ["--learning_rate=nan"], "--learning_rate=nan: expected at least 0.0"),
        ("train", ["--weight_decay=inf"], "--weight_decay=inf: expected at most 3e+38"),
        ("train", ["--format=\n"], "Unknown command line flag 'format'"),
        ("train", ["--task=a\nb"], r"--task=a\nb: expected one of"),
        ("evaluate", ["--sts=a,,b"], "--sts=a,,b: expected no empty entry"),
        ("embed", [b"--input=caf\xe9"], r"--input=caf\udce9: expected text in UTF-8"),
        ("embed", ["--flagfile=missing"], "missing"),
        ("build_sts", ["--seed=1e3"], "flag --seed=1e3"),
    ],
)
def test_a_shell_gets_one_line_and_no_file(job, arguments, message, shell):
    status, printed, said = shell(job, *arguments)
    assert status == 1
    assert printed == ""
    assert said.startswith("error: ")
    assert message in said
    assert said.count("\n") == 1


def test_a_flag_file_that_is_no_text_is_one_line(shell, tmp_path):
    path = tmp_path / "flags"
    for content in (b"--input=\xff\n", b"--input=a\0b\n--flagfile=x\0y\n", b"--model=m\0\n"):
        path.write_bytes(content)
        status, _, said = shell(
            "embed", "--output=o", "--input=i", "--model=m", f"--flagfile={path}"
        )
        assert status == 1, content
        assert re.fullmatch(r"error: [^\n]+\n", said)
    status, _, said = shell("embed", f"--flagfile={tmp_path}")
    assert (status, said.count("\n")) == (1, 1)
    assert str(tmp_path) in said


def test_every_job_is_here():
    assert {load_options(job) for job in COMMANDS} == set(JOBS)
