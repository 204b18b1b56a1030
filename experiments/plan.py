"""Plans the runs of an experiment: preparation, adaptation, and a model for each row, corpus and
seed. Its evaluation on one half of the sets is a separate run, so that the other half needs no
further training.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

from rows import RECIPE, Row, Variant
from runner import WORK, Run
from settings import Corpus, Settings

# Size small: the longest utterances in tokens, as in the paper (section 5.3).
_LONGEST = {"mdc": 50, "jddc": 100, "ecd": 50}
_MIN_TURNS = {"mdc": 2, "jddc": 4, "ecd": 4}
VOCABULARY = 6000
_WARMUP = 500
_SESSIONS = 20  # per batch, as in the paper (section 5.3)
ENCODER = "model/encoder/config.json"  # written by train when it is done
# Without dev data, train keeps the encoder of the last step. The sets serve as test sets here.
LAST = ("--dev_samples=0", "--eval_every=1000000000")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The runs of an experiment, and the paths of their results.

    Attributes:
        runs: name -> run.
        results: (variant, corpus) -> results file of each seed; one file if nothing is random.
        skipped: what these settings leave out, and why.
    """

    runs: dict[str, Run]
    results: dict[tuple[Variant, str], list[pathlib.Path]]
    skipped: list[str]


def make_plan(settings: Settings, variants: list[Variant], half: str) -> Plan:
    """Plans the runs that the variants need, scored on one half (--half of `evaluate`)."""
    planner = _Planner(settings)
    results: dict[tuple[Variant, str], list[pathlib.Path]] = {}
    skipped = []
    for variant in variants:
        for corpus in settings.corpora:
            if variant.row.fit == "word_vectors" and not corpus.word_vectors:
                skipped.append(f"{variant.row.title} on {corpus.title}: no file of word vectors")
                continue
            if variant.row.encoder == "adapted" and not settings.adapts and not variant.row.train:
                skipped.append(f"{variant.row.title} on {corpus.title}: nothing is adapted")
                continue
            results[variant, corpus.name] = [
                settings.work_dir / planner.add_scores(corpus, variant, seed, half) / "results.json"
                for seed in (settings.seeds if variant.row.seeded else (None,))
            ]
    return Plan(planner.runs, results, skipped)


class Planner:
    """Collects runs, each after the runs it needs. A run that is there already is not added again.

    Methods that add a run return its name, or the path of what it makes.
    """

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}

    def add_run(self, name: str, job: str, flags: list[str], output: str, needs: list[str]) -> str:
        """Adds a job of the package."""
        command = ("-m", "dcse_tf.cli", job, *flags)
        self.runs.setdefault(name, Run(name, command, output, tuple(dict.fromkeys(needs))))
        return name

    def add_joined(self, name: str, sources: Sequence[str]) -> str:
        """Adds the joining of dialogues, each entry "FORMAT:FILE,FILE", to one file of sessions."""
        output = f"--output={WORK}/{name}/sessions.jsonl"
        command = ("experiments/join_corpora.py", output, *sources)
        self.runs.setdefault(name, Run(name, command, "sessions.jsonl"))
        return name


class _Planner(Planner):
    """Collects the runs of the tables."""

    def __init__(self, settings: Settings):
        super().__init__()
        self._settings = settings

    def add_scores(self, corpus: Corpus, variant: Variant, seed: int | None, half: str) -> str:
        """Adds a row's evaluation on one half of the corpus' sets."""
        row = variant.row
        place = f"{corpus.name}/{variant.name}" + ("" if seed is None else f"-seed{seed}")
        model, needs = self._add_model(corpus, variant, seed, f"rows/{place}")
        name = f"scores/{half}/{place}"
        sts = ",".join(measured.sts for measured in corpus.sets if measured.sts)
        flags = [
            f"--model={model}",
            f"--pooling={'mean' if row.fit else row.pooling}",
            f"--retrieval={','.join(measured.retrieval for measured in corpus.sets)}",
            *([f"--sts={sts}"] if sts else []),
            f"--half={half}",
            f"--output={WORK}/{name}/results.json",
        ]
        return self.add_run(name, "evaluate", flags, "results.json", needs)

    def _add_model(
        self, corpus: Corpus, variant: Variant, seed: int | None, name: str
    ) -> tuple[str, list[str]]:
        """A row's model, and the runs that make it: its own or its encoder's, if any."""
        row, needs, flags = variant.row, [], []
        if row.encoder:
            encoder, needs = self._add_encoder(corpus, row.encoder)
            if not (row.train or row.fit):
                return encoder, needs
            data = self._add_data(corpus, variant.share)
            needs = [*needs, data]
            flags = [f"--encoder={encoder}", f"--data_dir={WORK}/{data}/data"]
        model = f"{WORK}/{name}/model"
        if seed is not None:
            flags.append(f"--seed={seed}")
        if row.train:
            flags = [*self._train_flags(variant), f"--run_dir={model}", *flags]
            return model, [self.add_run(name, "train", flags, ENCODER, needs)]
        flags = [*self._fit_flags(corpus, row), f"--output_dir={model}", *flags]
        return model, [self.add_run(name, "fit_baseline", flags, "model/baseline.json", needs)]

    def _train_flags(self, variant: Variant) -> list[str]:
        settings, flags = self._settings, list(variant.row.train)
        if settings.size == "small":
            flags += ["--learning_rate=1e-4", "--freeze_layers=0", "--nofreeze_embeddings"]
        if settings.size != "paper" and variant.row.sessions:
            flags += [f"--batch_form={settings.batch_form}", f"--global_batch_size={_SESSIONS}"]
        steps = [f"--steps={settings.steps}"] if settings.steps else []
        recipe = RECIPE[settings.size] if variant.row.recipe else ()
        return [*flags, *steps, *recipe, *LAST, *settings.train_flags, *variant.flags]

    def _fit_flags(self, corpus: Corpus, row: Row) -> list[str]:
        if row.fit == "word_vectors":
            return ["--kind=word_vectors", *corpus.word_vectors]
        steps = self._settings.steps if row.fit == "flow" else None
        kind = [f"--kind={row.fit}", f"--pooling={row.pooling}"]
        return [*kind, f"--steps={steps}"] if steps else kind

    def _add_encoder(self, corpus: Corpus, which: str) -> tuple[str, list[str]]:
        """An encoder, and the run that makes it, if any.

        Size small has one encoder for all corpora; its original is what the adaptation starts
        from, written by a step with learning rate 0. Other sizes use the checkpoint, adapted to
        each corpus; size encoder adapts it only if --mlm_steps is given.
        """
        settings = self._settings
        if settings.size == "small":
            name, data = which, self._add_joint()
            steps = settings.mlm_steps if which == "adapted" else 1
            vectors = zip(("token_vectors", "token_index"), settings.token_vectors)
            size = [f"--encoder_size={settings.encoder_size}"]
            size += [f"--{flag}={file}" for flag, file in vectors]
            flags = make_mlm_flags(size, steps, "5e-4" if which == "adapted" else "0")
        elif which == "original" or not settings.adapts:
            return corpus.encoder, []
        else:
            name, data = f"adapted/{corpus.name}", self._add_data(corpus, 1.0)
            how = [f"--flagfile=flags/{corpus.name}/mlm.flags"]
            if settings.size == "encoder":
                how = ["--preset=mlm", f"--steps={settings.mlm_steps}"]
            flags = [*how, f"--encoder={corpus.encoder}"]
        model = f"{WORK}/encoders/{name}/model"
        places = [f"--data_dir={WORK}/{data}/data", f"--run_dir={model}"]
        run = self.add_run(f"encoders/{name}", "train", [*flags, *LAST, *places], ENCODER, [data])
        return model, [run]

    def _add_joint(self) -> str:
        """Size small: adds the joined training text of all corpora, and its vocabulary."""
        corpora = self._settings.joint
        texts = [f"{c.format}:{','.join(c.train)}" for c in corpora]
        joined, name = self.add_joined("data/joined", texts), "data/joint"
        flags = [
            "--format=jsonl",
            f"--input={WORK}/{joined}/sessions.jsonl",
            f"--vocab_size={VOCABULARY}",
            f"--max_sequence_length={max(_LONGEST[corpus.name] for corpus in corpora)}",
            f"--min_turns={min(_MIN_TURNS[corpus.name] for corpus in corpora)}",
            *_hold_out(1.0),
            f"--output_dir={WORK}/{name}/data",
        ]
        return self.add_run(name, "prepare_data", flags, "data/manifest.json", [joined])

    def _add_data(self, corpus: Corpus, share: float) -> str:
        """Adds the preparation of a corpus; a share below 1 holds out the other sessions."""
        name = f"data/{corpus.name}" + ("" if share == 1.0 else f"-share={share:g}")
        size, needs = self._settings.size, []
        if size in ("demo", "paper"):
            flags = [f"--flagfile=flags/{corpus.name}/prepare.flags", f"--vocab={corpus.encoder}"]
            flags += [f"--format={corpus.format}"] if corpus.format else []
        else:
            vocabulary = corpus.encoder
            if size == "small":
                needs = [self._add_joint()]
                vocabulary = f"{WORK}/{needs[0]}/data/vocabulary"
            flags = [
                f"--format={corpus.format}",
                f"--vocab={vocabulary}",
                f"--max_sequence_length={_LONGEST[corpus.name]}",
                f"--min_turns={_MIN_TURNS[corpus.name]}",
            ]
        if corpus.train:
            flags.append(f"--input={','.join(corpus.train)}")
        flags += [*_hold_out(share), f"--output_dir={WORK}/{name}/data"]
        return self.add_run(name, "prepare_data", flags, "data/manifest.json", needs)


def make_mlm_flags(size: Sequence[str], steps: int, learning_rate: str = "5e-4") -> list[str]:
    """Flags of a training of a new encoder, whose size other flags give."""
    return [
        "--task=mlm",
        *size,
        f"--steps={steps}",
        "--global_batch_size=128",
        f"--learning_rate={learning_rate}",
        f"--warmup_steps={min(_WARMUP, steps // 6)}",
        "--decay=linear",
    ]


def _hold_out(share: float) -> list[str]:
    """Flags that hold out all but a share of the sessions. Splits depend on a hash of the session's
    name, so a smaller share is a subset of a larger one.
    """
    half = f"{(1.0 - share) / 2:g}"
    return [f"--dev_fraction={half}", f"--test_fraction={half}"]
