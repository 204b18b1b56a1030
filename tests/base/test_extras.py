"""What an extra installs is imported when it is needed, and named where it is missing."""

import ast
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

from dcse_tf.errors import PACKAGES, InputError, require

CALLS = {
    "jieba": 'from dcse_tf.data.dialogue import make_splitter; make_splitter("auto")("我的包裹")',
    "gensim": """
        import pathlib
        from dcse_tf.baselines.word_vectors import read_word_vectors
        read_word_vectors(pathlib.Path("a.bin"))
    """,
    "fastapi": """
        from dcse_tf.serving.serve import ServeOptions, serve
        serve(ServeOptions(model="m"), print)
    """,
    "pyarrow": """
        import pathlib
        from dcse_tf.data.formats.reading import read_parquet
        next(read_parquet(pathlib.Path("a.parquet"), list))
    """,
}
EXTRAS = {
    "jieba": "chinese",
    "gensim": "vectors",
    "fastapi": "server",
    "pyarrow": "parquet",
}


@pytest.mark.slow
@pytest.mark.parametrize("package", CALLS)
def test_a_package_that_is_missing_is_one_message_with_what_to_install(package):
    """None of them is there; only the call that needs it says so."""
    missing = ", ".join(map(repr, CALLS))
    script = f"import sys\nfor name in [{missing}]:\n    sys.modules[name] = None\n"
    script += textwrap.dedent(CALLS[package])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dcse_tf.errors.InputError")
    assert f"needs {package}" in last
    assert last.endswith(f": pip install {PACKAGES[EXTRAS[package]]}")


def test_the_packages_that_messages_name_are_those_of_setup_py():
    tree = ast.parse((pathlib.Path(__file__).parents[2] / "setup.py").read_text())
    (extras,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "OPTIONAL"
    )
    names = {
        extra: " ".join(re.match(r"[\w-]+", requirement)[0] for requirement in requirements)
        for extra, requirements in extras.items()
    }
    assert names == PACKAGES


def test_a_package_that_is_there_is_given():
    assert require("json.decoder", extra="none", why="nothing").JSONDecoder
    with pytest.raises(InputError, match=r"reading a.bin needs no_such_package"):
        require("no_such_package.part", extra="vectors", why="reading a.bin")
