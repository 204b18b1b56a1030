import dataclasses
import json
import math

import pytest
from train_options import make_manifest, resolve

from dcse_tf.baselines.flow import FlowOptions
from dcse_tf.data.options import PrepareOptions
from dcse_tf.evaluation.options import CompareOptions, EvaluateOptions
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.options import OptionError
from dcse_tf.search.search_options import EmbedOptions, SearchOptions
from dcse_tf.sets.options import (
    BuildCandidatesOptions,
    BuildRetrievalOptions,
    BuildStsOptions,
    ExplainOptions,
    InspectOptions,
    MergeStsOptions,
)
from dcse_tf.tasks import registry
from dcse_tf.tasks.options import TrainOptions

# The least that each job needs, with a value or two that are not the default.
CONFIGS = {
    PrepareOptions: {"input": ("a.tsv", "b.tsv"), "output_dir": "out", "vocab_size": 100},
    TrainOptions: {"data_dir": "data", "run_dir": "run", "encoder_size": "tiny", "steps": 7},
    EvaluateOptions: {"model": "run", "sts": ("对话.txt",), "seed": 3},
    EmbedOptions: {"model": "run", "input": "in.txt", "output": "out.npy", "pooling": "cls"},
    ExportOptions: {"run_dir": "run", "output_dir": "out", "overwrite": True},
    BuildCandidatesOptions: {
        "input": ("a.tsv",),
        "output": "groups.jsonl",
        "responses": "all",
        "roles": ("agent",),
    },
    BuildRetrievalOptions: {
        "input": ("a.json",),
        "output": "select.txt",
        "format": "sgd",
        "roles": ("user", "我"),
    },
    InspectOptions: {"input": ("a.tsv",), "output_dir": "out", "sts": ("对话.txt", "b.txt")},
    BuildStsOptions: {"input": ("a.csv",), "output_dir": "out", "strategies": ("unigram",)},
    MergeStsOptions: {"sheets": ("a.csv", "b_*.csv"), "output": "sts.txt", "min_annotators": 2},
    CompareOptions: {"results": ("a.json", "b.json")},
    ExplainOptions: {"model": "run", "input": "a.jsonl", "output_dir": "out", "response": 2},
    FlowOptions: {"encoder": "bert", "data_dir": "d", "output_dir": "out"},
}
each_config = pytest.mark.parametrize(
    ("config", "values"), CONFIGS.items(), ids=lambda value: getattr(value, "__name__", "")
)


def train_config(**changes):
    settings = {"data_dir": "data", "run_dir": "run", "encoder_size": "tiny", **changes}
    return TrainOptions.from_dict(settings)


@each_config
def test_unknown_settings_are_refused_by_name(config, values, tmp_path):
    with pytest.raises(OptionError, match=r"unknown setting tempo, zoo; \w+ knows"):
        config.from_dict({**values, "zoo": 1, "tempo": 2})
    with pytest.raises(OptionError, match="unknown setting tempo"):
        config.from_dict(values).replace(tempo=1)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**values, "tempo": 1}))
    with pytest.raises(OptionError, match=f"{path}.*unknown setting tempo"):
        config.read_json(path)


@each_config
def test_a_configuration_survives_json(config, values, tmp_path):
    before = config.from_dict(values)
    before.write_json(tmp_path / "config.json")
    after = config.read_json(tmp_path / "config.json")
    assert after == before
    assert hash(after) == hash(before)  # lists became tuples again
    written = json.loads((tmp_path / "config.json").read_text())
    assert list(written) == sorted(field.name for field in dataclasses.fields(before))
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@each_config
def test_a_configuration_cannot_be_changed_but_copied(config, values):
    before = config.from_dict(values)
    name = next(iter(values))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(before, name, "other")
    other = (*values[name], "other") if isinstance(values[name], tuple) else "other"
    changed = before.replace(**{name: other})
    assert getattr(before, name) == values[name]
    assert getattr(changed, name) != values[name]


@pytest.mark.parametrize(
    "content", ["", "{", "[1, 2]", '{"model": "m", "sts": ["a"], "seed": "x"}']
)
def test_a_broken_file_is_named(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(OptionError, match=f"{path}: not a EvaluateOptions"):
        EvaluateOptions.read_json(path)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (PrepareOptions, {"format": "csv"}, "`format`=csv: expected one of 'session_tsv', 'jsonl'"),
        (PrepareOptions, {"shards": 0}, "`shards`=0: expected at least 1"),
        (PrepareOptions, {"dev_fraction": 0.6}, "`dev_fraction`=0.6: expected at most 0.5"),
        (
            PrepareOptions,
            {"max_sequence_length": 2},
            "`max_sequence_length`=2: expected at least 3",
        ),
        (PrepareOptions, {"input": ()}, "`input` is required: Files of dialogues"),
        (PrepareOptions, {"output_dir": ""}, "`output_dir` is required: Folder to write"),
        (TrainOptions, {"task": "gpt"}, "`task`=gpt: expected one of 'dialogue_cse', 'mlm'"),
        (TrainOptions, {"encoder_size": "huge"}, "`encoder_size`=huge: expected one of"),
        (TrainOptions, {"temperature": 0.0}, "`temperature`=0.0: expected at least"),
        (TrainOptions, {"temperature": math.nan}, "`temperature`=nan: expected at least"),
        (TrainOptions, {"dropout": 0.95}, "`dropout`=0.95: expected at most 0.9"),
        (TrainOptions, {"freeze_layers": -2}, "`freeze_layers`=-2: expected at least -1"),
        (TrainOptions, {"data_dir": ""}, "`data_dir` is required: Folder written by prepare_data"),
        (TrainOptions, {"run_dir": ""}, "`run_dir` is required"),
        (
            TrainOptions,
            {"logical_cpus": 2, "global_batch_size": 25, "negatives": 3},
            "`global_batch_size`=25: not divisible by `logical_cpus`=2",
        ),
        (
            TrainOptions,  # the default of the task, 20
            {"logical_cpus": 3, "negatives": 3},
            "`global_batch_size`=20: not divisible by `logical_cpus`=3",
        ),
        (EvaluateOptions, {"model": ""}, "`model` is required"),
        (EvaluateOptions, {"sts": ()}, "`response_selection` or `candidates_file`"),
        (EvaluateOptions, {"candidates": 1}, "`candidates`=1: expected at least 2"),
        (EvaluateOptions, {"half": "dev"}, "`half`=dev: expected one of 'all', 'choose', 'report'"),
        (
            EvaluateOptions,
            {"half": "report", "response_selection": ("test.jsonl",)},
            "`half`=report is for `retrieval` and `sts`: leave `response_selection` out",
        ),
        (EmbedOptions, {"pooling": "max"}, "`pooling`=max: expected one of '', 'mean', 'cls'"),
        *(
            (config, {"max_sequence_length": length}, f"={length}: expected 0 or at least 3")
            for config in (EmbedOptions, EvaluateOptions, ExportOptions, ExplainOptions)
            for length in (-1, 1, 2)
        ),
        (
            EvaluateOptions,
            {"half": "report", "candidates_file": ("c.jsonl",)},
            "`half`=report is for `retrieval` and `sts`: leave `candidates_file` out",
        ),
        *(
            (EvaluateOptions, {name: value}, "has no meaning without `candidates_file`")
            for name, value in (
                ("candidates_format", "ecd"),
                ("candidates_lines", 10),
                ("candidates_turns", 3),
                ("several_positives", True),
                ("max_bad_lines", 1),
            )
        ),
        *(
            (EvaluateOptions, {name: value}, "has no meaning without `response_selection`")
            for name, value in (
                ("candidates", 5),
                ("context_turns", 5),
                ("same_role", False),
                ("max_samples", 100),
                ("join_consecutive", True),
            )
        ),
        (
            EvaluateOptions,
            {"candidates_file": ("c.jsonl",), "candidates_lines": 10},
            "`candidates_lines`=10: has no meaning with `candidates_format`=jsonl",
        ),
        (
            EvaluateOptions,
            {"candidates_file": ("c",), "candidates_format": "csv"},
            "`candidates_format`=csv: expected one of 'jsonl', 'ecd', 'ubuntu', 'ubuntu_csv'",
        ),
        (BuildCandidatesOptions, {"candidates": 1}, "`candidates`=1: expected at least 2"),
        (BuildCandidatesOptions, {"responses": "two"}, "`responses`=two: expected one of 'one', "),
        (
            BuildCandidatesOptions,
            {"negatives_from": "model"},
            "`model` goes with `negatives_from`=model, and only with it",
        ),
        (
            BuildCandidatesOptions,
            {"model": "run"},
            "`model` goes with `negatives_from`=model, and only with it",
        ),
        (
            BuildCandidatesOptions,
            {"skip_top": 3},
            "`skip_top`=3: has no meaning with `negatives_from`=random",
        ),
        (
            BuildCandidatesOptions,
            {"negatives_from": "model", "model": "run", "words": "jieba"},
            "`words`=jieba: has no meaning with `negatives_from`=model",
        ),
        (
            BuildCandidatesOptions,
            {"dev_fraction": 0.5, "test_fraction": 0.5},
            "`test_fraction`=0.5: with `dev_fraction` it leaves nothing to train on",
        ),
        (ExportOptions, {"format": "keras"}, "`format`=keras: expected one of 'saved_model'"),
        (BuildRetrievalOptions, {"input": ()}, "`input` is required"),
        (BuildRetrievalOptions, {"output": ""}, "`output` is required: The select.txt to write"),
        (BuildRetrievalOptions, {"format": "xml"}, "`format`=xml: expected one of 'csv', 'tsv', "),
        (BuildRetrievalOptions, {"words": "no"}, "`words`=no: expected one of 'auto', 'words', "),
        (
            BuildRetrievalOptions,
            {"selection": "no"},
            "`selection`=no: expected one of 'top', 'hard'",
        ),
        (BuildRetrievalOptions, {"sentences": -1}, "`sentences`=-1: expected at least 0"),
        (BuildRetrievalOptions, {"candidates": 1}, "`candidates`=1: expected at least 2"),
        (BuildRetrievalOptions, {"max_positives": 0}, "`max_positives`=0: expected at least 1"),
        (BuildRetrievalOptions, {"max_negatives": -1}, "`max_negatives`=-1: expected at least 0"),
        (BuildRetrievalOptions, {"min_words": 0}, "`min_words`=0: expected at least 1"),
        (
            BuildRetrievalOptions,
            {"selection": "hard", "candidates": 50},
            "`candidates` has no meaning with `selection`=hard",
        ),
        (InspectOptions, {"input": ()}, "`input` is required"),
        (InspectOptions, {"output_dir": ""}, "`output_dir` is required: Folder for report.html"),
        (InspectOptions, {"words": "no"}, "`words`=no: expected one of 'auto', 'words', 'jieba', "),
        (InspectOptions, {"near_duplicate": 0.0}, "`near_duplicate`=0.0: expected at least 0.1"),
        (InspectOptions, {"near_duplicate": 1.5}, "`near_duplicate`=1.5: expected at most 1.0"),
        (
            InspectOptions,
            {"max_sequence_length": 2},
            "`max_sequence_length`=2: expected at least 3",
        ),
        (BuildStsOptions, {"input": ()}, "`input` is required"),
        (
            BuildStsOptions,
            {"output_dir": ""},
            "`output_dir` is required: Folder to write the sheet",
        ),
        (BuildStsOptions, {"pairs": 1}, "`pairs`=1: expected at least 2"),
        (BuildStsOptions, {"annotators": 0}, "`annotators`=0: expected at least 1"),
        (BuildStsOptions, {"vector_size": 0}, "`vector_size`=0: expected at least 1"),
        (BuildStsOptions, {"sentences": -1}, "`sentences`=-1: expected at least 0"),
        (BuildStsOptions, {"max_uses": 0}, "`max_uses`=0: expected at least 1"),
        (BuildStsOptions, {"words": "no"}, "`words`=no: expected one of 'auto', 'words', "),
        (
            BuildStsOptions,
            {"strategies": ("intent", "bigram", "Word2Vec")},
            "`strategies`=intent,bigram,Word2Vec: expected some of unigram, word2vec, intent",
        ),
        (BuildStsOptions, {"strategies": ()}, "`strategies`=: expected some of unigram, word2vec"),
        (MergeStsOptions, {"sheets": ()}, "`sheets` is required: The filled sheets"),
        (MergeStsOptions, {"output": ""}, "`output` is required: The sts.txt to write"),
        (MergeStsOptions, {"min_annotators": 0}, "`min_annotators`=0: expected at least 1"),
        (CompareOptions, {"results": ()}, "`results` is required: Two or more files"),
        (CompareOptions, {"results": ("a.json",)}, "`results`: expected two files or more"),
    ],
)
def test_an_error_names_the_flag(config, changes, message):
    with pytest.raises(OptionError) as caught:
        config.from_dict({**CONFIGS[config], **changes})
    assert message in str(caught.value)
    with pytest.raises(OptionError):
        config.from_dict(CONFIGS[config]).replace(**changes)


@pytest.mark.parametrize("encoder", ["", "./bert"])
def test_exactly_one_of_encoder_and_encoder_size(encoder):
    size = "tiny" if encoder else ""
    with pytest.raises(OptionError, match=r"either `encoder` .* or `encoder_size`"):
        train_config(encoder=encoder, encoder_size=size)
    assert train_config(encoder=encoder, encoder_size="" if encoder else "tiny")


@pytest.mark.parametrize("vocab", ["", "./bert"])
def test_exactly_one_of_vocab_and_vocab_size(vocab):
    values = {"input": ("a.tsv",), "output_dir": "out", "vocab": vocab}
    with pytest.raises(OptionError, match=r"either `vocab` .* or `vocab_size`"):
        PrepareOptions(**values, vocab_size=100 if vocab else 0)
    assert PrepareOptions(**values, vocab_size=0 if vocab else 100)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        # The paper's batch and learning rate; 10 epochs of 1,000 / 20 = 50 steps; a tenth warm-up.
        (
            "dialogue_cse",
            {
                "global_batch_size": 20,
                "learning_rate": 5e-5,
                "freeze_layers": -1,
                "freeze_embeddings": True,
                "steps": 500,
                "warmup_steps": 50,
            },
        ),
        # Half an epoch of 1,000 / 50 = 20 steps.
        (
            "mlm",
            {
                "global_batch_size": 50,
                "learning_rate": 2e-5,
                "freeze_layers": 0,
                "freeze_embeddings": False,
                "steps": 10,
                "warmup_steps": 1,
            },
        ),
    ],
)
def test_the_task_fills_what_was_not_given(task, expected):
    filled = resolve(train_config(task=task)).to_dict()
    assert {name: filled[name] for name in expected} == expected
    assert None not in filled.values()


def test_what_was_given_stays():
    given = {
        "global_batch_size": 30,
        "learning_rate": 1e-3,
        "steps": 77,
        "warmup_steps": 0,
        "freeze_layers": 2,
        "freeze_embeddings": False,
    }
    filled = resolve(train_config(**given)).to_dict()
    assert {name: filled[name] for name in given} == given
    # 3 epochs of 100 sessions in batches of 30: 300 / 30 = 10 steps.
    assert resolve(train_config(global_batch_size=30, epochs=3.0), 100).steps == 10
    assert resolve(train_config(epochs=0.0), 100).steps == 1
    # 50 steps of 20 of 100 samples.
    assert resolve(train_config(steps=50), 100).epochs == 10.0


def test_filling_in_twice_changes_nothing():
    for task in registry.TASKS:
        once = resolve(train_config(task=task))
        assert resolve(once) == once


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (PrepareOptions, {"vocab_size": 5}, "`vocab_size`=5: expected more than the 5 special"),
        (PrepareOptions, {"vocab_size": 0, "vocab": "b", "lowercase": False}, "`lowercase`=False"),
        (PrepareOptions, {"dev_fraction": 0.5, "test_fraction": 0.5}, "nothing to train on"),
        (PrepareOptions, {"shards": 2**31}, "`shards`=(a number of 32 bits): expected at most"),
        (PrepareOptions, {"seed": 2**31}, "`seed`=(a number of 32 bits): expected at most 21474"),
        (PrepareOptions, {"input": ("a", "")}, "`input`=a,: an entry is empty"),
        (PrepareOptions, {"output_dir": "a\0b"}, r"`output_dir`=a\x00b: holds a null character"),
        (
            PrepareOptions,
            {"vocab": "\udce9"},
            r"`vocab`=\udce9: holds a null character or is not U",
        ),
        (TrainOptions, {"learning_rate": math.inf}, "`learning_rate`=inf: expected at most 3e+38"),
        (TrainOptions, {"epochs": math.inf}, "`epochs`=inf: expected at most 1000000"),
        (TrainOptions, {"clip_norm": 0.0}, "`clip_norm`=0.0: expected at least"),
        (
            TrainOptions,
            {"task": "mlm", "temperature": 0.2},
            "`temperature`=0.2: has no meaning wit",
        ),
        (TrainOptions, {"task": "mlm", "batch_form": "plain"}, "only with dialogue_cse, siamese_s"),
        (TrainOptions, {"task": "mlm", "context_turns": 2}, "`context_turns`=2: has no meaning"),
        (TrainOptions, {"task": "simcse", "cosine_weight": 0.5}, "`cosine_weight`=0.5: has no"),
        (
            TrainOptions,
            {"task": "siamese_single", "context_turns": 1},
            "`context_turns`=1: has no meaning with `task`=siamese_single",
        ),
        (TrainOptions, {"context_tokens": 100}, "`context_tokens`=100: has no meaning with"),
        (TrainOptions, {"mask_rate": 0.2}, "`mask_rate`=0.2: has no meaning with"),
        (TrainOptions, {"session_turns": 8}, "`session_turns`=8: has no meaning without"),
        (TrainOptions, {"global_batch_size": 9}, "`negatives`=9: they come from the other sess"),
        (TrainOptions, {"best_metric": "dev/map"}, "`best_metric`=dev/map: with these settings"),
        (TrainOptions, {"dev_samples": 0, "dev_sts": "s"}, "the scores are dev/spearman"),
        (TrainOptions, {"task": "mlm", "best_metric": "dev/cosine_r1"}, "dev/accuracy, dev/loss"),
        (
            TrainOptions,
            {"encoder_size": "", "encoder": "run/"},
            "`run_dir`=run: contains the encoder to",
        ),
        (
            BuildRetrievalOptions,
            {"format": "ecd", "roles": ()},
            "`format`=ecd: has no intents; exp",
        ),
        (
            BuildRetrievalOptions,
            {"format": "crosswoz", "labels": "act"},
            "`labels`=act: `format`=crosswoz has no acts; expected one of jsonl, table, messages",
        ),
        (
            BuildStsOptions,
            {"format": "csv", "labels": "act"},
            "`labels`=act: has no meaning with `format`=csv",
        ),
        (BuildRetrievalOptions, {"format": "csv"}, "`roles`=user,我: has no meaning with `format`"),
        (
            BuildRetrievalOptions,
            {"text_column": "t"},
            "`text_column`=t: has no meaning with `form",
        ),
        (
            BuildStsOptions,
            {"format": "jddc", "strategies": ("intent",)},
            "`format`=jddc: has no in",
        ),
        (BuildStsOptions, {"strategies": ("intent", "intent")}, "one of them is given twice"),
        (
            BuildStsOptions,
            {"word_vectors": "a.txt"},
            "`word_vectors`=a.txt: has no meaning without word2vec in `strategies`",
        ),
        (
            BuildStsOptions,
            {"vector_size": 8},
            "`vector_size`=8: has no meaning without word2vec in `strategies`",
        ),
        (
            BuildStsOptions,
            {"strategies": ("word2vec",), "word_vectors": "a.txt", "vector_size": 8},
            "`vector_size`=8: has no meaning with `word_vectors`",
        ),
        (
            BuildStsOptions,
            {"join_consecutive": False},
            "`join_consecutive`=False: has no meaning with `format`=csv",
        ),
        (EmbedOptions, {"text_column": "t"}, "=t: has no meaning without `spark_master`"),
        (EmbedOptions, {"block_size": 9, "spark_master": "yarn"}, "no meaning with `spark_master`"),
        (InspectOptions, {"max_sequence_length": 20}, "=20: has no meaning without `vocab`"),
        (InspectOptions, {"sts": (), "near_duplicate": 0.5}, "=0.5: has no meaning without `retr"),
    ],
)
def test_what_cannot_be_together_is_refused_by_name(config, changes, message):
    with pytest.raises(OptionError) as caught:
        config.from_dict({**CONFIGS[config], **changes})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (
            PrepareOptions,
            {"output_dir": "./b.tsv"},
            "`output_dir`=./b.tsv: would overwrite",
        ),
        (PrepareOptions, {"output_dir": "d", "input": ("d/../d/x/a*.tsv",)}, "`input`=d/../d/x/a*"),
        (
            EvaluateOptions,
            {"output": "对话.txt"},
            "`output`=对话.txt: would overwrite `sts`",
        ),
        (
            PrepareOptions,
            {"output_dir": ".."},
            "`output_dir`=..: expected the name of a file or a folder",
        ),
        (
            ExportOptions,
            {"output_dir": "./"},
            "`output_dir`=./: expected the name of a file or a folder",
        ),
        (EmbedOptions, {"output": "in.txt"}, "`output`=in.txt: would overwrite `input`"),
        (ExportOptions, {"output_dir": "run/"}, "would overwrite `run_dir`=run"),
        (ExportOptions, {"output_dir": "run/encoder"}, "lies inside what `run_dir`=run reads"),
        (
            ExportOptions,
            {"output_dir": "run/x/../checkpoints/step"},
            "lies inside what `run_dir`=run reads",
        ),
        (
            ExportOptions,
            {"run_dir": "run/encoder", "output_dir": "run/encoder/onnx"},
            "lies inside what `run_dir`=run/encoder reads",
        ),
        (
            EvaluateOptions,
            {"model": "m", "output": "m/encoder/config.json"},
            "what `model`=m reads",
        ),
        (FlowOptions, {"output_dir": "d/vocabulary"}, "lies inside what `data_dir`=d reads"),
        (MergeStsOptions, {"output": "a.csv"}, "would overwrite `sheets`=a.csv"),
        (FlowOptions, {"output_dir": "d"}, "would overwrite `data_dir`=d"),
    ],
)
def test_what_is_read_is_not_written_over(config, changes, message):
    with pytest.raises(OptionError) as caught:
        config.from_dict({**CONFIGS[config], **changes})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (ExplainOptions, {"model": "run", "input": "why/a.jsonl", "output_dir": "why"}),
        (ExplainOptions, {"model": "why", "input": "a.jsonl", "output_dir": "./why"}),
        (SearchOptions, {"model": "run", "queries": ("q.txt",), "output": "q.txt"}),
        (SearchOptions, {"model": "run", "corpus": "c.txt", "output": "./c.txt"}),
        (
            ExportOptions,
            {"run_dir": "run", "results": ("out/r.json",), "output_dir": "out"},
        ),
    ],
)
def test_an_explanation_answers_and_an_export_take_no_place_of_what_is_read(config, settings):
    with pytest.raises(OptionError, match="would overwrite `"):
        config(**settings)


def test_an_output_inside_or_beside_an_input_is_none_of_it():
    assert ExportOptions(run_dir="run", output_dir="run/export")
    assert ExportOptions(run_dir="run", output_dir="run/encoder2")
    assert ExportOptions(run_dir="run", output_dir="encoder")
    assert PrepareOptions(**{**CONFIGS[PrepareOptions], "output_dir": "a.tsv.prepared"})


def test_scores_that_a_run_has_may_decide_which_encoder_is_best():
    for task in ("dialogue_cse", "siamese_single", "siamese_multi", "simcse", "mlm"):
        assert train_config(task=task)
        assert train_config(task=task, dev_samples=0)  # there is no score, and none is looked for
        assert train_config(task=task, dev_retrieval="r", best_metric="dev/map")
        assert train_config(task=task, dev_sts="s", dev_samples=0, best_metric="dev/spearman")


def test_negatives_must_fit_into_the_other_sessions_of_the_batch():
    with pytest.raises(OptionError, match=r"`negatives`=20: .* at most .* = 19"):
        train_config(negatives=20)
    assert train_config(negatives=19).negatives == 19
    assert not hasattr(train_config(task="mlm", negatives=60), "negatives")


@pytest.mark.parametrize(("task", "batch"), [("dialogue_cse", 20), ("mlm", 50)])
def test_a_batch_must_fit_into_an_epoch(task, batch):
    message = f"`global_batch_size`={batch}: the train split of data has only {batch - 1} samples"
    with pytest.raises(OptionError, match=message):
        resolve(train_config(task=task), batch - 1)
    assert resolve(train_config(task=task), batch).global_batch_size == batch


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("packed", 64)),
        ({"batch_form": "plain"}, ("padded", 64)),
        ({"task": "mlm"}, ("packed", 64)),
        ({"layout": "padded", "row_length": 80}, ("padded", 80)),
    ],
)
def test_the_layout_is_packed_where_nothing_speaks_against_it(given, expected):
    config = resolve(train_config(**given))
    assert (config.layout, config.row_length) == expected
    longer = resolve(train_config(**given), longest=80)
    assert (longer.layout, longer.row_length) == (expected[0], 80)


def test_rows_hold_the_longest_utterance():
    with pytest.raises(OptionError, match="`row_length`=64: sequences of data have up to 100"):
        resolve(train_config(row_length=64), longest=100)
    assert resolve(train_config(row_length=64, layout="padded"), longest=100)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_form": "plain", "layout": "packed"}, "`layout`=packed: `batch_form`=plain pads"),
    ],
)
def test_layouts_that_cannot_be_are_refused(given, message):
    with pytest.raises(OptionError, match=message):
        train_config(**given)


def test_an_encoder_chosen_by_what_is_not_trained_is_told():
    for changes in ({}, {"cosine_weight": 1.0, "best_metric": "dev/cosine_mrr"}):
        options = TrainOptions.from_dict({**CONFIGS[TrainOptions], **changes})
        assert not options.list_warnings(make_manifest())
    options = TrainOptions.from_dict({**CONFIGS[TrainOptions], "cosine_weight": 1.0})
    (told,) = options.list_warnings(make_manifest())
    assert told.startswith("`best_metric`=dev/matching_r1 chooses the encoder by a similarity that")
