"""Whatever a command line says, it is a configuration or one sentence that names the flag."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcse_tf.arguments import parse_flags
from dcse_tf.cli.commands import JOBS, load_options, one_line
from dcse_tf.options import OptionError

# The least that each job needs; what hypothesis draws comes behind it, and counts.
NEEDED = {
    "prepare_data": "--input=a.tsv --output_dir=out --vocab_size=100",
    "train": "--data_dir=data --run_dir=run --encoder_size=tiny",
    "evaluate": "--model=run --sts=sts.txt",
    "embed": "--model=run --input=in.txt --output=out.npy",
    "export": "--run_dir=run --output_dir=out",
    "inspect_data": "--input=a.tsv --output_dir=out",
    "build_retrieval": "--input=a.csv --output=select.txt",
    "build_candidates": "--input=a.jsonl --output=out.jsonl",
    "compare": "--results=a.json,b.json",
    "merge": "--start=start --trained=run --output_dir=out",
    "calibrate": "--model=run --dialogues=a.jsonl --output=b.json",
    "discover": "--model=run --input=a.tsv --output_dir=out",
    "explain": "--model=run --input=a.jsonl --output_dir=out",
    "search": "--model=run --corpus=a.txt",
    "serve": "--model=run",
    "fit_baseline": "--kind=flow --encoder=e --data_dir=d --output_dir=out",
}
ODD = [
    *("", "-1", "-0.0", "nan", "-inf", "1e400", "2147483648", "9" * 5000, "0x10", "٣", "1_0"),
    *("a,,b", "a\0b", "\n", "\ud800", "\u2028", ",", '"a', "/", "..", "--", "*", "x" * 100_000),
    *("0", "2", "0.5", "true", "all", "out", "a.tsv", "out/../a.tsv"),
]


@pytest.mark.parametrize("job", JOBS)
def test_a_command_line_is_a_configuration_or_one_sentence(job):
    """Some flags with some value, some of them twice, misspelt, without a value or with a no."""
    kind, needed = load_options(job), NEEDED[job].split()
    names = list(parse_flags(kind, job, needed).to_dict())
    values = st.sampled_from(ODD) | st.text(max_size=8)
    with_value = st.tuples(st.sampled_from(names), values).map(lambda pair: "--{}={}".format(*pair))
    bare = st.tuples(st.sampled_from(["--{}", "--no{}", "--{}s=1"]), st.sampled_from(names)).map(
        lambda pair: pair[0].format(pair[1])
    )
    others = st.sampled_from(["stray", "--", "", "--tempo=1", "--=", "--flagfile=none"])

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.one_of(*[with_value] * 6, bare, others), max_size=5))
    def check(arguments):
        try:
            made = parse_flags(kind, job, [*needed, *arguments])
        except OptionError as error:
            said = one_line(error)
            assert said.isprintable(), arguments
            assert 10 < len(said) <= 1100, arguments
            assert "-" in said or "flag" in said, arguments
        else:
            assert type(made).from_dict(made.to_dict()) == made

    check()
