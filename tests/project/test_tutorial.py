"""What the documents say to type can be typed: jobs, flags, values, files, Python."""

import ast
import contextlib
import json
import pathlib
import re
import shlex
import sys

import pytest

from dcse_tf.arguments import parse_flags
from dcse_tf.cli.commands import JOBS, list_options, load_options
from dcse_tf.data.formats import FORMATS
from dcse_tf.input_files import BadLines
from dcse_tf.options import OptionError

ROOT = pathlib.Path(__file__).parents[2]
# What is typed today. Decisions and measurements also have commands of earlier commits.
PAGES = (
    *("README.md", "docs/tutorial.md", "docs/response_selection.md", "docs/jobs.md"),
    *("docs/operating.md", "docs/domain.md"),
)
DOCUMENTS = sorted(
    str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
)
# Flags of what is no job of dcse_tf: the experiments.
OTHER_FLAGS = {"help", "size", "row", "rows", "dry_run"}


def read_page(page):
    return (ROOT / page).read_text(encoding="utf-8")


def find_code(text, language):
    """The code blocks of a language, fenced."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def find_commands(text):
    """(job, arguments) of every command line, lines that go on joined, comments left out."""
    code = "\n".join(find_code(text, "bash")).replace("\\\n", " ")
    found = re.findall(r"^dcse (\w+)(.*)$", code, re.MULTILINE)
    return [(job, shlex.split(arguments, comments=True)) for job, arguments in found]


COMMANDS = [(page, *command) for page in PAGES for command in find_commands(read_page(page))]


@pytest.mark.parametrize(
    ("page", "job", "arguments"),
    COMMANDS,
    ids=[f"{c[0]}-{n}-{c[1]}" for n, c in enumerate(COMMANDS)],
)
def test_a_command_is_taken_by_its_job(page, job, arguments, monkeypatch):
    """Up to where the job would begin: flags known, values in range, none missing."""
    monkeypatch.chdir(ROOT)
    assert job in JOBS
    parse_flags(load_options(job), job, arguments)


def test_the_commands_are_found():
    """The jobs that each page is about; else the test above might have nothing to do."""
    jobs = {page: {c[1] for c in COMMANDS if c[0] == page} for page in PAGES}
    assert jobs["docs/jobs.md"] == set(JOBS)
    assert jobs["README.md"] >= {"prepare_data", "train", "evaluate", "embed", "search", "export"}
    assert jobs["docs/tutorial.md"] >= {
        *("inspect_data", "prepare_data", "train", "evaluate", "compare", "explain", "search"),
        "export",
    }
    assert jobs["docs/response_selection.md"] == {
        *("prepare_data", "train", "build_candidates", "evaluate", "export", "search", "calibrate")
    }
    assert len(read_page("README.md").splitlines()) <= 120
    for page in PAGES:
        named = len(re.findall(r"^dcse ", read_page(page), re.MULTILINE))
        assert named == len([c for c in COMMANDS if c[0] == page]), page


@pytest.mark.parametrize("page", PAGES)
def test_a_flag_named_in_the_text_is_some_jobs(page):
    kinds = [options for _, options in list_options()]
    prose = re.sub(r"^```.*?^```$", "", read_page(page), flags=re.DOTALL | re.MULTILINE)
    named = re.findall(r"`--(?:no)?(\w+)(?:=([^`\s]*))?`", prose)
    assert len(named) > 1
    for name, value in named:
        takers = [kind for kind in kinds if name in kind.fields()]
        assert takers or name in OTHER_FLAGS | {"flagfile", "preset"}, name
        if takers and value and value[0].isalnum():
            assert any(_takes(kind, name, value) for kind in takers), f"--{name}={value}"


def _takes(kind, name, value):
    """Whether a flag may have this value, whatever else its job says."""
    with contextlib.suppress(OptionError):
        kind.convert(name, value)
        return True
    return False


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "docs/extending.md"])
def test_the_files_named_are_there(page):
    for name in re.findall(r"\b((?:flags|experiments|tests|dcse_tf)/[\w./-]*\w)", read_page(page)):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", DOCUMENTS)
def test_the_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(#[^)\s]+)?\)", read_page(page)):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), target
        if anchor:
            assert anchor[1:] in _anchors(path.read_text(encoding="utf-8")), target + anchor


def _anchors(text):
    """Of the headings, as they are made on the site and where the files are browsed."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", name).strip().lower().replace(" ", "-") for name in headings}


def test_python_in_the_documents_is_python():
    blocks = [code for page in DOCUMENTS for code in find_code(read_page(page), "python")]
    assert blocks
    for code in blocks:
        ast.parse(code)


def test_the_tutorial_turns_its_raw_file_into_the_sessions_that_are_in_it(tmp_path, monkeypatch):
    """What the tutorial writes as jsonl is what the reader of the raw file reads."""
    conversations = {
        "one": [[("ann", "hi"), ("ann", "how are you?")], [("bob", 'fine, thé\u2028 "you"?')]],
        "two": [[("cy", "only I\n speak")]],
        "three": [],
    }
    package = tmp_path / "chitchat_dataset"
    package.mkdir()
    (package / "__init__.py").touch()
    raw = {
        name: {"messages": [[{"text": x, "sender": s} for s, x in turn] for turn in turns]}
        for name, turns in conversations.items()
    }
    (package / "dataset.json").write_text(json.dumps(raw))
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Set first, so that the stand-in, which is imported next, is taken away after the test.
    monkeypatch.setitem(sys.modules, "chitchat_dataset", None)
    monkeypatch.delitem(sys.modules, "chitchat_dataset")
    code = "\n".join(find_code(read_page("docs/tutorial.md"), "bash"))
    here_documents = re.findall(r"python - <<'EOF'\n(.*?)\nEOF", code, re.DOTALL)
    (script,) = [each for each in here_documents if "dataset.json" in each]
    exec(script, {})
    written = list(FORMATS["jsonl"].read(tmp_path / "runs/dialogues.jsonl", BadLines(0)))
    assert written == list(FORMATS["chitchat"].read(package / "dataset.json", BadLines(0)))
    assert [len(turns) for _, turns in written] == [3, 1, 0]
