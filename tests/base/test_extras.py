"""What an extra installs is imported when it is needed, and named where it is missing."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

from dcse_tf.errors import PACKAGES, InputError, require

# The extra and a call that needs the package.
CALLS = {
    "jieba": (
        "chinese",
        'from dcse_tf.data.dialogue import make_splitter; make_splitter("auto")("我的包裹")',
    ),
    "gensim": (
        "vectors",
        "from dcse_tf.baselines.word_vectors import read_word_vectors as read; read(Path('a.bin'))",
    ),
    "fastapi": (
        "server",
        "from dcse_tf.serving.serve import ServeOptions, serve; serve(ServeOptions(model='m'))",
    ),
    "pyarrow": (
        "parquet",
        "from dcse_tf.data.formats.reading import read_parquet as r; next(r(Path('a.pq'), list))",
    ),
}
TRY = """
try:
    {}
except InputError as error:
    print(error)
"""


@pytest.mark.slow
def test_packages_that_are_missing_are_one_message_each_with_what_to_install():
    """None of them is there; only the call that needs it says so."""
    script = "import sys\nfrom pathlib import Path\nfrom dcse_tf.errors import InputError\n"
    script += f"sys.modules |= dict.fromkeys({list(CALLS)})\n"
    script += "".join(TRY.format(call) for _, call in CALLS.values())
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line, (package, (extra, _)) in zip(done.stdout.splitlines(), CALLS.items(), strict=True):
        assert f"needs {package}" in line
        assert line.endswith(f": pip install {PACKAGES[extra]}")


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


def test_an_installation_without_tensorflow_has_the_other_packages():
    setup, page = (
        pathlib.Path(__file__).parents[2] / name for name in ("setup.py", "docs/operating.md")
    )
    required = re.search(r"install_requires=\[(.*?)\]", setup.read_text(), re.DOTALL)[1]
    named = re.search("pip install -c constraints.txt (absl-py .*)", page.read_text())[1].split()
    left_out = {"tensorboard", "tqdm", "transformers"}  # the hub's client brings tqdm
    assert {name.lower() for name in re.findall(r' "([\w-]+)', required)} <= {*named, *left_out}


def test_a_package_that_is_there_is_given():
    assert require("json.decoder", extra="none", why="nothing").JSONDecoder
    with pytest.raises(InputError, match=r"reading a.bin needs no_such_package"):
        require("no_such_package.part", extra="vectors", why="reading a.bin")
