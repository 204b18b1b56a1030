"""What an extra installs is imported when it is needed, and named where it is missing."""

import subprocess
import sys
import textwrap

import pytest

from dcse_tf.errors import InputError, require

CALLS = {
    "jieba": 'from dcse_tf.data.words import make_splitter; make_splitter("auto")("我的包裹")',
    "gensim": "from dcse_tf.model.vectors import train_word_vectors as f; f([['a', 'b']], 2, 0)",
    "krippendorff": """
        import numpy as np
        from dcse_tf.tools.sts_set import _alpha
        _alpha(np.array([[1.0, 2.0], [1.0, 3.0]]))
    """,
    "matplotlib": """
        from dcse_tf.evaluation.heatmap import draw_heatmap
        draw_heatmap(None, "matching")
    """,
    "fastapi": """
        from dcse_tf.serving.job import serve
        from dcse_tf.serving.options import ServeOptions
        serve(ServeOptions(model="m"), print)
    """,
    "pyarrow": """
        from dcse_tf.data.formats import FORMATS
        next(FORMATS["parquet"].read("a.parquet", None))
    """,
}
EXTRAS = {
    "jieba": "chinese",
    "gensim": "sts",
    "krippendorff": "sts",
    "matplotlib": "plots",
    "fastapi": "server",
    "pyarrow": "parquet",
}


@pytest.mark.parametrize("package", CALLS)
def test_a_package_that_is_missing_is_one_message_with_the_extra(package):
    """None of them is there; only the call that needs it says so."""
    missing = ", ".join(map(repr, CALLS))
    script = f"import sys\nfor name in [{missing}]:\n    sys.modules[name] = None\n"
    script += textwrap.dedent(CALLS[package])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dcse_tf.errors.InputError")
    assert f"needs {package}" in last
    assert last.endswith(f"pip install 'dcse_tf[{EXTRAS[package]}]'")


def test_a_package_that_is_there_is_given():
    assert require("json.decoder", extra="none", why="nothing").JSONDecoder
    with pytest.raises(InputError, match=r"`strategies`=word2vec needs no_such_package"):
        require("no_such_package.part", extra="sts", why="`strategies`=word2vec")
