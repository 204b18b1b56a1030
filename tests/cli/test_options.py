"""Configurations: what they refuse, their JSON, and what a training's options work out."""

import dataclasses
import json
import math

import pytest
from train_options import resolve, tiny_options

from dcse_tf.arguments import parse_flags
from dcse_tf.cli.commands import load_options
from dcse_tf.errors import InputError
from dcse_tf.files import write_record
from dcse_tf.options import OptionError, Options, option
from dcse_tf.tasks import TASKS


class Job(Options):
    name: str = option("", "A name.", required=True)
    kind: str = option("small", "A kind.", choices=("small", "large"))
    length: int = option(0, "A length.", minimum=3, or_zero=True)
    rate: float = option(0.5, "A rate.", minimum=0.0, maximum=1.0)
    loud: bool = option(False, "Whether it is loud.")
    inputs: tuple[str, ...] = option((), "Files.", path="files")
    model: str = option("", "A model.", path="reads")
    output: str = option("", "A file.", path="writes")


class LongJob(Job, group="tone"):
    """Plain values give other defaults, and leave the rest of an option as it was."""

    length: int = 7
    rate: float = 0.25
    tone: str = option("", "A tone.")


# Values beside {"name": "n"}, and the option that the error names.
REFUSED = [
    ({"name": ""}, "name"), ({"kind": "huge"}, "kind"), ({"length": 2}, "length"),
    ({"length": 2**31}, "length"), ({"rate": -0.1}, "rate"), ({"rate": 1.5}, "rate"),
    ({"rate": math.nan}, "rate"), ({"inputs": ("a", "")}, "inputs"), ({"name": "a\0b"}, "name"),
    ({"name": "\udce9"}, "name"),
    # What a job writes may not take the place of what it reads, nor lie in a part of it.
    ({"inputs": ("a.txt", "b.txt"), "output": "./b.txt"}, "output"),
    ({"inputs": ("d/../d/x/a*.txt",), "output": "d"}, "output"),
    ({"model": "run", "output": "run/"}, "output"),
    ({"model": "run", "output": "run/encoder"}, "output"),
    ({"model": "run", "output": "run/x/../checkpoints/step"}, "output"),
    ({"model": "run/encoder", "output": "run/encoder/onnx"}, "output"),
    ({"output": ".."}, "output"),
    ({"output": "./"}, "output"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "named"), REFUSED)
def test_a_value_that_cannot_be_used_is_refused_by_name(values, named):
    with pytest.raises(OptionError, match=f"^`{named}`"):
        LongJob.from_dict({"name": "n", **values})
    with pytest.raises(OptionError, match=f"^`{named}`"):
        LongJob(name="n").replace(**values)


def test_an_output_may_lie_beside_an_input_or_elsewhere_in_a_run():
    for output in ("run/export", "run/encoder2", "encoder"):
        assert Job(name="n", model="run", output=output)
    assert Job(name="n", inputs=("a.tsv",), output="a.tsv.prepared")


def test_a_plain_value_changes_the_default_alone():
    assert (LongJob(name="n").length, LongJob(name="n").rate, Job(name="n").length) == (7, 0.25, 0)
    for name, field in Job.fields().items():
        assert field.metadata == LongJob.fields()[name].metadata
    assert LongJob.fields()["tone"].metadata["group"] == "tone"


def test_a_configuration_survives_json_and_cannot_be_changed(tmp_path):
    before = Job(name="对话", inputs=("a", "b"), rate=0.1)
    write_record(tmp_path / "config.json", before.to_dict())
    after = Job.read_json(tmp_path / "config.json")
    assert after == before
    assert hash(after) == hash(before)  # lists became tuples again
    assert list(json.loads((tmp_path / "config.json").read_text())) == sorted(Job.fields())
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.name = "other"


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"name": "n", "tempo": 1}'])
def test_a_broken_file_is_named(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(InputError, match=f"{path}: not a Job"):
        Job.read_json(path)


def test_unknown_options_are_refused_by_name():
    with pytest.raises(OptionError, match=r"unknown setting tempo, zoo; \w+ knows"):
        Job.from_dict({"name": "n", "zoo": 1, "tempo": 2})
    with pytest.raises(OptionError, match="unknown setting tempo"):
        Job(name="n").replace(tempo=1)


# Command lines that contradict themselves, and the beginning of what is said. Those of a training
# are in tests/tasks/test_task_options.py.
PREPARE = "prepare_data --input=a --output_dir=out --vocab=v"
RETRIEVAL, SEARCH = "build_retrieval --input=a --output=b", "search --model=m"
CANDIDATES = "build_candidates --input=a --output=b"
BASELINE, EXPORT = "--output_dir=out", "export --run_dir=run --output_dir=out"
REFUSED_BY_JOBS = [
    ("prepare_data --input=a --output_dir=out", "give either `vocab`"),
    ("prepare_data --input=a --output_dir=out --vocab_size=5", "`vocab_size`"),
    (f"{PREPARE} --vocab_size=100", "give either `vocab`"),
    (f"{PREPARE} --nolowercase", "`lowercase`"),
    (f"{PREPARE} --dev_fraction=0.5 --test_fraction=0.5", "`test_fraction`"),
    (f"{PREPARE} --encoding=klingon", "`encoding`"), (f"{PREPARE} --format=parquet", "`format`"),
    (f"{PREPARE} --columns=text:body", "`columns`"),
    (f"{PREPARE} --format=messages --columns=time:at", "`columns`"),
    (f"{PREPARE} --format=table --columns=text:a,text:b", "`columns`"),
    (f"{PREPARE} --spark_master=local[2] --vocab= --vocab_size=100", "`spark_master`"),
    (f"{PREPARE} --spark_master=local[2] --max_sessions=3", "`max_sessions`"),
    (f"fit_baseline whitening {BASELINE} --data_dir=d", "`encoder`"),
    (f"fit_baseline flow {BASELINE} --encoder=e", "`data_dir`"),
    (f"fit_baseline flow {BASELINE} --encoder=e --data_dir=d --projection=context", "`projection`"),
    (f"fit_baseline word_vectors {BASELINE}", "`word_vectors`"),
    (f"fit_baseline word_vectors {BASELINE} --word_vectors=a.npz", "`word_index`"),
    (f"fit_baseline word_vectors {BASELINE} --word_vectors=a --word_index=b", "`word_index`"),
    ("evaluate --model=m", "nothing to evaluate"),
    ("evaluate --model=m --response_selection=f --half=report", "`half`"),
    ("evaluate --model=m --candidates_file=f --half=report", "`half`"),
    ("evaluate --model=m --response_selection=f --max_samples=9", "`max_samples`"),
    ("evaluate --model=m --response_selection=f --projection=context", "`projection`"),
    ("evaluate --model=m --response_selection=f --candidates_turns=1", "`candidates_turns`"),
    ("evaluate --model=m --candidates_file=f --context_turns=5", "`context_turns`"),
    ("evaluate --model=m --sts=f --candidates=5", "`candidates`"),
    ("evaluate --model=m --sts=f --seed=1", "`seed`"), ("compare --results=a.json", "`results`"),
    (SEARCH, "nothing to search: give `corpus`"),
    (f"{SEARCH} --index=i --overwrite", "`overwrite`"),
    (f"{SEARCH} --index=i --index_type=ivf", "`index_type`"),
    (f"{SEARCH} --corpus=c --query=a --queries=b", "give either `query`"),
    (f"{SEARCH} --corpus=c --query=\u3000", "`query`"), (f"{SEARCH} --corpus=c --top=0", "`top`"),
    (f"{SEARCH} --corpus=c --rerank_top=9", "`rerank_top`"),
    (f"{SEARCH} --corpus=c --reranker=r --rerank_top=3", "`rerank_top`"),
    (f"{SEARCH} --corpus=c --projection=context", "`projection`"),
    (f"{SEARCH} --corpus=c --find=responses --truncate_dim=8", "`truncate_dim`"),
    (f"{SEARCH} --corpus=c --find=responses --pooling=cls", "`pooling`"),
    (f"{RETRIEVAL} --labels=act", "`labels`"), (f"{RETRIEVAL} --roles=a", "`roles`"),
    (f"{RETRIEVAL} --nojoin_consecutive", "`join_consecutive`"),
    (f"{RETRIEVAL} --format=sgd --columns=text:t", "`columns`"),
    (f"{RETRIEVAL} --format=session_tsv", "`format`"),
    (f"{RETRIEVAL} --format=session_tsv --labels=act", "`labels`"),
    (f"{RETRIEVAL} --candidates=1", "`candidates`"), (f"{CANDIDATES} --skip_top=1", "`skip_top`"),
    (f"{CANDIDATES} --dev_fraction=0.5 --test_fraction=0.5", "`test_fraction`"),
    (f"{EXPORT} --format=pickle", "`format`"), (f"{EXPORT} --format=static", "`format`"),
    (f"{EXPORT} --quantize=int8", "`quantize`"), (f"{EXPORT} --data_dir=data", "`data_dir`"),
    (f"{EXPORT} --format=static --data_dir=out/data", ".*would overwrite `data_dir`"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "said"), REFUSED_BY_JOBS)
def test_a_job_refuses_by_name_what_does_not_go_together(command, said):
    job, *flags = command.split(" ")
    with pytest.raises(OptionError, match=f"^{said}"):
        parse_flags(load_options(job), job, flags)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        # The paper's batch and learning rate; 10 epochs of 1,000 / 20 = 50 steps; a tenth warm-up.
        ("dialogue_cse", (20, 5e-5, -1, True, 500, 50)),
        # Half an epoch of 1,000 / 50 = 20 steps.
        ("mlm", (50, 2e-5, 0, False, 10, 1)),
    ],
)
def test_what_depends_on_the_corpus_is_filled_in_once(task, expected):
    options = resolve(tiny_options(task=task))
    names = ("global_batch_size", "learning_rate", "freeze_layers", "freeze_embeddings")
    assert tuple(getattr(options, n) for n in (*names, "steps", "warmup_steps")) == expected
    assert resolve(tiny_options(steps=50), 100).epochs == 10.0
    assert resolve(tiny_options(steps=4)).warmup_steps == 0  # a tenth of them
    for each in TASKS:
        once = resolve(tiny_options(task=each))
        assert resolve(once) == once
        assert None not in once.to_dict().values()


def test_the_batch_and_the_rows_must_fit_the_corpus():
    with pytest.raises(OptionError, match=r"`global_batch_size`=20: .* only 19"):
        resolve(tiny_options(), 19)
    assert resolve(tiny_options(), 20).global_batch_size == 20
    with pytest.raises(OptionError, match="`row_length`=64: sequences of data have up to 100"):
        resolve(tiny_options(row_length=64), longest=100)
    assert resolve(tiny_options(row_length=64, layout="padded"), longest=100)
    assert resolve(tiny_options(), longest=80).row_length == 80


def test_scores_that_a_run_has_may_choose_its_best_encoder():
    for task in ("dialogue_cse", "siamese_single", "siamese_multi", "simcse", "mlm"):
        assert tiny_options(task=task)
        assert tiny_options(task=task, dev_samples=0)  # there is no score, and none is looked for
        assert tiny_options(task=task, dev_retrieval="r", best_metric="dev/map")
        assert tiny_options(task=task, dev_sts="s", dev_samples=0, best_metric="dev/spearman")
