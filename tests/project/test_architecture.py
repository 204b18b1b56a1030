"""The structure holds: imports run one way, flags are read in one place."""

import ast
import pathlib
import re

import pytest

from dcse_tf.cli.commands import list_options

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "dcse_tf"
MODULES = sorted(PACKAGE.rglob("*.py"))

# What each room may import of the package; modules at the top (errors, files) are open to all.
ALLOWED = {
    "api": {
        *("baselines", "data", "discovery", "evaluation", "exporting", "inspecting", "search"),
        *("spark", "tasks", "training"),
    },
    "cli": {
        *("api", "baselines", "bert", "data", "discovery", "evaluation", "exporting"),
        *("inspecting", "search", "serving", "sets", "tasks", "training"),
    },
    "serving": {"data", "discovery", "encoder", "reranker", "search"},
    "discovery": {"bert", "data", "encoder", "evaluation", "sets"},
    "spark": {"bert", "data", "encoder", "search"},
    "exporting": {
        *("baselines", "bert", "data", "encoder", "evaluation", "matching", "reading"),
        *("reranker", "tasks"),
    },
    "training": {
        *("baselines", "bert", "data", "encoder", "evaluation", "matching"),
        *("reading", "reranker", "tasks"),
    },
    "tasks": {"bert", "data", "evaluation", "matching", "reading"},
    "search": {"bert", "encoder", "evaluation", "reranker"},
    "inspecting": {"bert", "data", "encoder", "evaluation"},
    "sets": {"bert", "data", "encoder", "evaluation"},
    "evaluation": {"bert", "data", "encoder", "matching", "reading", "reranker"},
    "reranker": {"bert", "encoder", "reading"},
    "baselines": {"bert", "data", "matching"},
    "encoder": {"baselines", "bert", "matching", "reading"},
    "data": {"bert"},
    "reading": {"bert", "matching"},
    "matching": {"bert"},
    "bert": set(),
}
BASE = {"arguments", "errors", "files", "input_files", "machine", "options", "progress"}

# Lines of each room, and of what stands beside the package. A number may only fall: what is added
# is paid for by what leaves. "base" are the modules at the top.
BUDGETS = {
    "base": 1421, "baselines": 661, "bert": 2536, "cli": 418, "data": 3340, "discovery": 687,
    "encoder": 1047, "evaluation": 1393, "exporting": 1459, "inspecting": 389, "matching": 607,
    "reading": 648, "reranker": 420, "search": 896, "serving": 488, "sets": 474, "spark": 352,
    "tasks": 1880, "training": 1544, "tests": 17720, "experiments": 2974, "docs": 2195,
}  # fmt: skip


def _imports(path: pathlib.Path, at_once: bool = False) -> set[str]:
    """What a module imports; `at_once`: when it is imported itself, not in its functions."""
    names, tree = set(), ast.parse(path.read_text())
    for node in tree.body if at_once else ast.walk(tree):
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
        public = {"api", "baselines", "data", "encoder", "exporting", "reranker", "tasks"}
        assert _parts(path) <= public | BASE
    else:
        assert _parts(path) <= ALLOWED[part] | BASE | {part}


def test_no_two_rooms_import_each_other():
    arrows: dict[str, set[str]] = {}
    for path in MODULES:
        room = path.relative_to(PACKAGE).parts[0]
        if room in ALLOWED and room != "api":
            arrows.setdefault(room, set()).update(_parts(path) & ALLOWED.keys() - {room})
    # Rooms whose imports have all been taken away already can be taken away.
    while free := [room for room, others in arrows.items() if not others & arrows.keys()]:
        for room in free:
            del arrows[room]
    assert not arrows


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_to_its_budget_of_lines(room):
    if room == "base":
        paths = list(PACKAGE.glob("*.py"))
    elif room == "docs":
        paths = list((ROOT / room).glob("*.md"))
    else:
        folder = ROOT / room if (ROOT / room).is_dir() else PACKAGE / room
        paths = [path for path in folder.rglob("*") if path.suffix in (".py", ".sh")]
    assert sum(len(path.read_text().splitlines()) for path in paths) <= BUDGETS[room]


def test_no_two_modules_have_one_name():
    names = [path.name for path in MODULES if not path.name.startswith("__")]
    assert len(names) == len(set(names))


def test_flags_are_read_in_one_place():
    readers = {path for path in MODULES if any(n.startswith("absl.flags") for n in _imports(path))}
    assert readers == {PACKAGE / "arguments.py"}


def _list_messages(path: pathlib.Path) -> list[str]:
    """The texts in a module that are no docstrings."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in alone)
    return [node.value for node in texts if isinstance(node.value, str)]


def test_only_options_are_in_backticks_in_messages():
    """The command line shows what is in backticks as a flag, and there is no --search."""
    known = {name for _, kind in list_options() for name in kind.fields()} | {"preset"}
    shown = {
        (path.name, name)
        for path in MODULES
        for text in _list_messages(path)
        for name in re.findall("`([a-z][a-z0-9_]*)`", text)
        if name not in known
    }
    assert not shown


def test_json_is_parsed_in_one_place():
    """Elsewhere a text that is nested too deeply would be a traceback."""
    # The second runs by itself, without the package.
    own = {PACKAGE / "input_files.py", PACKAGE / "exporting/fresh_process.py"}
    readers = {path for path in MODULES if re.search(r"\bjson\.loads?\(", path.read_text())}
    assert readers <= own


def test_evaluation_and_dialogues_need_no_tensorflow():
    evaluation = ("bootstrap", "metrics", "report", "response_selection", "retrieval")
    paths = [PACKAGE / f"evaluation/{name}.py" for name in evaluation]
    paths += [*PACKAGE.glob("data/formats/*.py"), *PACKAGE.rglob("*options.py")]
    paths.append(PACKAGE / "tasks/terms/contrast.py")
    paths += [PACKAGE / f"data/{name}.py" for name in ("dialogue", "corpus")]
    paths += [PACKAGE / "input_files.py", *PACKAGE.glob("cli/*.py")]
    for path in paths:
        top_level = {name.split(".")[0] for name in _imports(path, at_once=True)}
        assert not top_level & {"tensorflow", "tensorflow_text", "keras", "keras_hub"}, path


def test_functions_fit_on_a_screen():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
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
