"""From settings and rows to runs: preparation, adaptation, one run a row, corpus and seed, and its
evaluation on a half of the sets, a run of its own: on the other half nothing is trained anew.
"""

import dataclasses
import pathlib

from rows import Row, Variant
from runs import WORK, Run
from settings import Corpus, Settings

# Small: the formats of the samples, and the paper's longest utterances (section 5.3).
_FORMATS = {"mdc": "mdc", "jddc": "jddc", "ecd": "dialoguecse"}
_LONGEST = {"mdc": 50, "jddc": 100, "ecd": 50}
_MIN_TURNS = {"mdc": 2, "jddc": 4, "ecd": 4}
_VOCABULARY = 6000
_WARMUP = 500
_SESSIONS = 20  # a batch, the paper's (section 5.3)
_NEVER = 10**9
_ENCODER = "model/encoder/config.json"  # what train leaves
_VECTOR_FLAGS = ("token_vectors", "token_index")
# Without dev data the encoder that train keeps is the last: the sets are the test here.
_LAST = ("--dev_samples=0", f"--eval_every={_NEVER}")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Runs in their order, and where results will lie.

    Attributes:
        results: (variant, corpus) -> file of each seed; one file where nothing is random.
        skipped: what cannot be had with these settings, and why.
    """

    runs: list[Run]
    results: dict[tuple[Variant, str], list[pathlib.Path]]
    skipped: list[str]


def make_plan(settings: Settings, variants: list[Variant], half: str) -> Plan:
    """The runs that variants need, each once, measured on a half: --half of `evaluate`."""
    runs: dict[str, Run] = {}
    results: dict[tuple[Variant, str], list[pathlib.Path]] = {}
    skipped = []
    for variant in variants:
        for corpus in settings.corpora:
            if variant.row.fit == "word_vectors" and not corpus.word_vectors:
                skipped.append(f"{variant.row.title} on {corpus.title}: no file of word vectors")
                continue
            seeds = settings.seeds if variant.row.seeded else (None,)
            for seed in seeds:
                run = _add_scores(runs, settings, corpus, variant, seed, half)
                path = settings.work_dir / run.name / "results.json"
                results.setdefault((variant, corpus.name), []).append(path)
    return Plan(list(runs.values()), results, skipped)


def _add(runs: dict[str, Run], run: Run) -> Run:
    return runs.setdefault(run.name, run)


def _add_scores(
    runs: dict[str, Run],
    settings: Settings,
    corpus: Corpus,
    variant: Variant,
    seed: int | None,
    half: str,
) -> Run:
    """A row's evaluation on a half of the corpus' sets."""
    row = variant.row
    name = f"{corpus.name}/{variant.name}" + ("" if seed is None else f"-seed{seed}")
    model, maker = _add_model(runs, settings, corpus, variant, seed, f"rows/{name}")
    name = f"scores/{half}/{name}"
    sts = ",".join(measured.sts for measured in corpus.sets if measured.sts)
    command = (
        "-m",
        "dcse_tf.cli.evaluate",
        f"--model={model}",
        f"--pooling={'mean' if row.fit else row.pooling}",
        f"--retrieval={','.join(s.retrieval for s in corpus.sets)}",
        *([f"--sts={sts}"] if sts else []),
        f"--half={half}",
        f"--output={WORK}/{name}/results.json",
    )
    needs = (maker.name,) if maker else ()
    return _add(runs, Run(name, (command,), ("results.json",), needs))


def _add_model(
    runs: dict[str, Run],
    settings: Settings,
    corpus: Corpus,
    variant: Variant,
    seed: int | None,
    name: str,
) -> tuple[str, Run | None]:
    """Where a row's model is, and the run that makes it: its own, or its encoder's, if any."""
    row, needs, places = variant.row, [], []
    if row.encoder:
        encoder, encoder_run = _add_encoder(runs, settings, corpus, row.encoder)
        if not (row.train or row.fit):
            return encoder, encoder_run
        data = _add_data(runs, settings, corpus, variant.share)
        needs = [run.name for run in (encoder_run, data) if run]
        places = [f"--encoder={encoder}", f"--data_dir={WORK}/{data.name}/data"]
    model = f"{WORK}/{name}/model"
    if row.train:
        job, output = ("train", *_train_flags(settings, variant), f"--run_dir={model}"), _ENCODER
    else:
        fit = _fit_flags(settings, corpus, row)
        job, output = ("fit_baseline", *fit, f"--output_dir={model}"), "model/baseline.json"
    random = [] if seed is None else [f"--seed={seed}"]
    command = ("-m", f"dcse_tf.cli.{job[0]}", *job[1:], *places, *random)
    return model, _add(runs, Run(name, (command,), (output,), tuple(needs)))


def _train_flags(settings: Settings, variant: Variant) -> list[str]:
    flags = list(variant.row.train)
    if settings.size == "small":
        flags += ["--learning_rate=1e-4", "--freeze_layers=0", "--nofreeze_embeddings"]
    if settings.size != "paper" and variant.row.sessions:
        flags += [f"--batch_form={settings.batch_form}", f"--global_batch_size={_SESSIONS}"]
    steps = [f"--steps={settings.steps}"] if settings.steps else []
    recipe = dict(variant.row.recipe).get(settings.size, ())
    return [*flags, *steps, *recipe, *_LAST, *settings.train_flags, *variant.flags]


def _fit_flags(settings: Settings, corpus: Corpus, row: Row) -> tuple[str, ...]:
    if row.fit == "word_vectors":
        return ("--kind=word_vectors", *corpus.word_vectors)
    flow = row.fit == "flow" and settings.steps
    steps = (f"--steps={settings.steps}",) if flow else ()
    return (f"--kind={row.fit}", f"--pooling={row.pooling}", *steps)


def _add_encoder(
    runs: dict[str, Run], settings: Settings, corpus: Corpus, which: str
) -> tuple[str, Run | None]:
    """Where an encoder is, and the run that makes it, if any.

    Small: one for all corpora, and the original is what the adaptation starts from: a step of
    rate 0 writes it. Others: the checkpoint, adapted to each corpus.
    """
    if settings.size != "small" and which == "original":
        return corpus.encoder, None
    if settings.size != "small":
        name, data = f"adapted/{corpus.name}", _add_data(runs, settings, corpus, 1.0)
        flags = (f"--flagfile=flags/{corpus.name}/mlm.flags", f"--encoder={corpus.encoder}")
    else:
        name, data = which, _add_joint(runs, settings)
        steps = settings.mlm_steps if which == "adapted" else 1
        vectors = settings.token_vectors
        flags = (
            "--task=mlm",
            f"--encoder_size={settings.encoder_size}",
            *(f"--{name}={file}" for name, file in zip(_VECTOR_FLAGS, vectors)),
            f"--steps={steps}",
            "--global_batch_size=128",
            f"--learning_rate={'5e-4' if which == 'adapted' else '0'}",
            f"--warmup_steps={min(_WARMUP, steps // 6)}",
            "--decay=linear",
        )
    name = f"encoders/{name}"
    places = (f"--data_dir={WORK}/{data.name}/data", f"--run_dir={WORK}/{name}/model")
    command = ("-m", "dcse_tf.cli.train", *flags, *_LAST, *places)
    return f"{WORK}/{name}/model", _add(runs, Run(name, (command,), (_ENCODER,), (data.name,)))


def _add_joint(runs: dict[str, Run], settings: Settings) -> Run:
    """Small: the training text of all corpora as one, with the vocabulary that is made from it."""
    name = "data/joint"
    texts = [f"{_FORMATS[c.name]}:{','.join(c.train)}" for c in settings.joint]
    join = ("experiments/join_corpora.py", f"--output={WORK}/{name}/joint.jsonl", *texts)
    longest = max(_LONGEST[corpus.name] for corpus in settings.joint)
    prepare = (
        "-m",
        "dcse_tf.cli.prepare_data",
        "--format=jsonl",
        f"--input={WORK}/{name}/joint.jsonl",
        f"--vocab_size={_VOCABULARY}",
        f"--max_sequence_length={longest}",
        f"--min_turns={min(_MIN_TURNS[corpus.name] for corpus in settings.joint)}",
        *_held_out(1.0),
        f"--output_dir={WORK}/{name}/data",
    )
    return _add(runs, Run(name, (join, prepare), ("data/manifest.json",)))


def _add_data(runs: dict[str, Run], settings: Settings, corpus: Corpus, share: float) -> Run:
    """A corpus, prepared; with a share below 1 the other sessions are held out."""
    name = f"data/{corpus.name}" + ("" if share == 1.0 else f"-share={share:g}")
    if settings.size != "small":
        needs: tuple[str, ...] = ()
        flags = [f"--flagfile=flags/{corpus.name}/prepare.flags", f"--vocab={corpus.encoder}"]
    else:
        joint = _add_joint(runs, settings)
        needs = (joint.name,)
        flags = [
            f"--format={_FORMATS[corpus.name]}",
            f"--vocab={WORK}/{joint.name}/data/vocabulary",
            f"--max_sequence_length={_LONGEST[corpus.name]}",
            f"--min_turns={_MIN_TURNS[corpus.name]}",
        ]
    command = (
        "-m",
        "dcse_tf.cli.prepare_data",
        *flags,
        *_held_out(share),
        *([f"--input={','.join(corpus.train)}"] if corpus.train else []),
        f"--output_dir={WORK}/{name}/data",
    )
    return _add(runs, Run(name, (command,), ("data/manifest.json",), needs))


def _held_out(share: float) -> tuple[str, ...]:
    """Splits are by a hash of the session's name: a smaller share is part of a larger one."""
    half = f"{(1.0 - share) / 2:g}"
    return (f"--dev_fraction={half}", f"--test_fraction={half}")
