"""The structure holds: imports run one way, flags are read in one place, modules stay small."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "dcse_tf"
MODULES = sorted(PACKAGE.rglob("*.py"))

# What each part may import of the package; modules at the top (errors, files) are open to all.
ALLOWED = {
    "api": {"data", "evaluation", "export", "integrations", "models"},
    "cli": {
        "cli",
        "config",
        "data",
        "evaluation",
        "export",
        "jobs",
        "models",
        "search",
        "training",
    },
    "jobs": {
        "baselines",
        "config",
        "data",
        "evaluation",
        "export",
        "jobs",
        "layers",
        "models",
        "search",
        "tasks",
        "training",
    },
    "tasks": {"config", "data", "layers", "models", "tasks", "training"},
    "export": {"baselines", "data", "export", "layers", "models"},
    "baselines": {"baselines", "data", "layers", "models"},
    "models": {"data", "layers", "models"},
    "training": {"training"},
    "layers": {"layers"},
    "data": {"config", "data"},
    "evaluation": {"evaluation"},
    "search": {"evaluation", "search"},
    "integrations": set(),
    "config": {"config"},
}
BASE = {"atomic", "errors", "input_files", "locking", "progress"}


def _imports(path: pathlib.Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _parts(path: pathlib.Path) -> set[str]:
    return {name.split(".")[1] for name in _imports(path) if name.startswith("dcse_tf.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part in BASE:
        assert _parts(path) <= BASE
    elif part == "__init__":
        assert _parts(path) <= {"api"}
    else:
        assert _parts(path) <= ALLOWED[part] | BASE


def test_flags_are_read_in_the_command_lines_alone():
    readers = {path for path in MODULES if any(n.startswith("absl.flags") for n in _imports(path))}
    assert readers == {PACKAGE / "cli/flag_options.py"}


def test_json_is_parsed_in_one_place():
    """Elsewhere a text that is nested too deeply would be a traceback."""
    own = {PACKAGE / "input_files.py", PACKAGE / "export/fresh_process.py"}  # the latter runs alone
    readers = {path for path in MODULES if re.search(r"\bjson\.loads?\(", path.read_text())}
    assert readers <= own


def test_evaluation_and_dialogues_need_no_tensorflow():
    paths = [*PACKAGE.glob("evaluation/*.py"), *PACKAGE.glob("data/corpora/*.py")]
    paths += [PACKAGE / "__init__.py", *PACKAGE.glob("search/*.py")]
    paths += [PACKAGE / "data/dialogue.py", PACKAGE / "input_files.py", *PACKAGE.glob("cli/*.py")]
    for path in paths:
        top_level = {
            name.split(".")[0]
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [node.module]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
        }
        assert not top_level & {"tensorflow", "tensorflow_text", "keras", "keras_hub"}, path


def test_modules_and_functions_stay_small():
    for path in MODULES:
        text = path.read_text()
        assert text.count("\n") <= 300, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{path}: {node.name}"


def test_the_reference_is_independent():
    assert not any("dcse_tf" in name for name in _imports(ROOT / "tests/reference.py"))


def test_every_flag_file_begins_with_its_record():
    files = sorted((ROOT / "flags").rglob("*.flags"))
    assert files
    for path in files:
        head = "".join(line for line in path.read_text().splitlines() if line.startswith("#"))
        for word in ("Command:", "Hardware:", "Duration", "xpected result"):
            assert word in head, f"{path}: {word}"
        assert "TBD" not in head, path
