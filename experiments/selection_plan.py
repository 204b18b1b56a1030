"""Plans the runs of response selection: preparation, post-training, a model for each row and seed,
and its scores on each set of a corpus. Corpora are done one after another, and within them seeds.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

from corpus_plan import CorpusPlanner, Dialogues
from plan import ENCODER, LAST, Plan
from rows import Variant
from runner import WORK, Runner
from selection_rows import SelectionRow
from selection_settings import SelectionCorpus, SelectionSettings

from dcse_tf.data.candidates import CANDIDATE_FORMATS

_CANDIDATES = 10
# In size small, all trainings freeze a checkpoint's lower half. A step takes a third less time, and
# of a whole encoder 200 steps of masked language modelling ruin more than they teach: on 334 dev
# groups of chit-chat, BERT has an R@1 of 42, and BERT-VFT one of 27 from a post-training of the
# whole encoder, of 45 from one of its upper half. An encoder made here is small and learns whole.
_FROZEN = ("--freeze_layers=-1", "--freeze_embeddings")


@dataclasses.dataclass(frozen=True)
class GroupSet:
    """Grouped candidates that models are scored on.

    Attributes:
        name: used in folders: "test" for the file given; "drawn" and "dev" for groups made from
            held-out sessions.
        title: used in reports.
        format: the file's format.
        file: the path, with `WORK` for the work folder.
        needs: names of the runs that make the file.
    """

    name: str
    title: str
    format: str
    file: str
    needs: tuple[str, ...] = ()

    @property
    def lines(self) -> int:
        """Lines per group if each line is a candidate, since adjacent groups may share a context;
        else 0.
        """
        return _CANDIDATES if CANDIDATE_FORMATS[self.format].line_each else 0

    def locate(self, work_dir: pathlib.Path) -> pathlib.Path:
        """The path of the file."""
        return pathlib.Path(self.file.replace(WORK, str(work_dir)))


@dataclasses.dataclass(frozen=True)
class SelectionPlan:
    """The runs of an experiment, and the paths of their results.

    Attributes:
        plan: the runs, and (variant, "CORPUS/SET") -> results file of each seed.
        sets: "CORPUS/SET" -> the set.
        models: (variant, corpus) -> run directory of each seed.
    """

    plan: Plan
    sets: dict[str, GroupSet]
    models: dict[tuple[Variant, str], list[pathlib.Path]]

    def keep_done(self, runner: Runner) -> "SelectionPlan":
        """Without runs that are not done with the present settings, and what they made."""
        runs = {name: run for name, run in self.plan.runs.items() if runner.is_done(name)}
        plan = dataclasses.replace(
            self.plan, runs=runs, results=runner.keep_done(self.plan.results)
        )
        return dataclasses.replace(self, plan=plan, models=runner.keep_done(self.models))


def make_plan(
    settings: SelectionSettings, variants: Sequence[Variant], dev: bool = False
) -> SelectionPlan:
    """Plans the runs that the variants need, scored on the test sets or, with `dev`, on groups
    drawn from dev.
    """
    planner = _Planner(settings)
    results: dict[tuple[Variant, str], list[pathlib.Path]] = {}
    sets: dict[str, GroupSet] = {}
    models: dict[tuple[Variant, str], list[pathlib.Path]] = {}
    for corpus in settings.corpora:
        for seed in settings.seeds:
            for variant in variants:
                model = planner.add_model(corpus, variant, seed)
                place = settings.work_dir / model / "model"
                models.setdefault((variant, corpus.name), []).append(place)
                for each in planner.add_sets(corpus, dev):
                    key = f"{corpus.name}/{each.name}"
                    sets[key] = each
                    run = planner.add_scores(each, corpus, model)
                    path = settings.work_dir / run / "results.json"
                    results.setdefault((variant, key), []).append(path)
    return SelectionPlan(Plan(planner.runs, results, []), sets, models)


class _Planner(CorpusPlanner):
    """Collects the runs; methods that add a run return its name."""

    def __init__(self, settings: SelectionSettings):
        super().__init__(settings.chinese_text, settings.mlm_steps)
        self._settings = settings

    def add_scores(self, each: GroupSet, corpus: SelectionCorpus, model: str) -> str:
        """Adds the scoring of a model on a set."""
        name = f"scores/{corpus.name}/{each.name}/{model.rpartition('/')[2]}"
        flags = [
            f"--model={WORK}/{model}/model",
            f"--candidates_file={each.file}",
            f"--candidates_format={each.format}",
            f"--candidates_turns={self._settings.figures.context_turns}",
            f"--output={WORK}/{name}/results.json",
        ]
        if each.lines:
            flags.append(f"--candidates_lines={each.lines}")
        return self.add_run(name, "evaluate", flags, "results.json", [model, *each.needs])

    def add_sets(self, corpus: SelectionCorpus, dev: bool) -> list[GroupSet]:
        """Adds the runs that make a corpus' sets; returns the sets."""
        if dev:
            return [self._add_drawn(corpus, "dev", "dev")]
        sets = []
        if corpus.test:
            form, _, file = corpus.test.partition(":")
            sets.append(GroupSet("test", f"{corpus.kind.title}, test file", form, file))
        if not corpus.test or self._settings.size == "small":
            sets.append(self._add_drawn(corpus, "test", "drawn"))
        return sets

    def _add_drawn(self, corpus: SelectionCorpus, split: str, name: str) -> GroupSet:
        """Adds groups of one response of each held-out session and nine from other sessions."""
        data, run = self._add_data(corpus), f"sets/{corpus.name}/{name}"
        flags = [
            "--format=jsonl",
            f"--input={WORK}/{data}/data/{split}.jsonl",
            "--nojoin_consecutive",
            f"--context_turns={self._settings.figures.context_turns}",
            f"--candidates={_CANDIDATES}",
            f"--output={WORK}/{run}/groups.jsonl",
        ]
        self.add_run(run, "build_candidates", flags, "groups.jsonl", [data])
        title = f"{corpus.kind.title}, drawn from held-out dialogues" + (
            " (dev)" if split == "dev" else ""
        )
        return GroupSet(name, title, "jsonl", f"{WORK}/{run}/groups.jsonl", (run,))

    def add_model(self, corpus: SelectionCorpus, variant: Variant, seed: int) -> str:
        """Adds a row's own training."""
        row: SelectionRow = variant.row
        data = self._add_data(corpus)
        name = f"rows/{corpus.name}/{variant.name.replace(row.name, row.folder, 1)}-seed{seed}"
        flags, needs = [*self._row_flags(corpus, row)], [data]
        if row.architecture in ("bert", "embedding"):
            encoder, made = self._add_start(corpus, row)
            flags += [f"--encoder={encoder}", *self._dtype_flags()]
            needs += made
        flags += [
            *self._settings.train_flags,
            *variant.flags,
            f"--data_dir={WORK}/{data}/data",
            f"--run_dir={WORK}/{name}/model",
            f"--seed={seed}",
        ]
        return self.add_run(name, "train", flags, ENCODER, needs)

    def _row_flags(self, corpus: SelectionCorpus, row: SelectionRow) -> list[str]:
        figures = self._settings.figures
        steps = [f"--steps={figures.steps}"] if figures.steps else []
        if figures.steps:
            every = max(1, figures.steps // figures.evaluations)
            steps += [f"--eval_every={every}", f"--save_every={every}"]
        dev = [f"--dev_samples={figures.dev_samples}", "--projector_sentences=0"]
        if row.architecture == "embedding":
            # As in the demo except for the steps: each uses every turn of its 20 sessions.
            turns = f"--context_turns={min(3, figures.context_turns)}"
            rate = f"--learning_rate={figures.learning_rate:g}"
            return [*row.train, turns, "--negatives=all", rate, *steps, *dev]
        lstm = row.architecture != "bert"
        flags = [
            "--task=response_selection",
            *([f"--architecture={row.architecture}"] if lstm else self._frozen_flags(corpus)),
            f"--auxiliary={','.join(row.auxiliary) or 'none'}",
            *row.train,
            f"--context_turns={figures.context_turns}",
            f"--max_context_tokens={figures.context_tokens}",
            f"--max_response_tokens={figures.response_tokens}",
            f"--global_batch_size={figures.sessions}",
            f"--learning_rate={figures.lstm_rate if lstm else figures.learning_rate:g}",
            *steps,
            *dev,
        ]
        if row.auxiliary:
            flags.append(f"--auxiliary_weight={figures.auxiliary_weight:g}")
        if "consistency" in row.auxiliary:
            flags.append(f"--consistency_margin={figures.consistency_margin:g}")
        return flags

    def _dtype_flags(self) -> list[str]:
        """The flags of a training of a BERT; DualLSTM and ESIM are always of float32."""
        dtype = self._settings.compute_dtype
        return [f"--compute_dtype={dtype}"] if dtype else []

    def _frozen_flags(self, corpus: SelectionCorpus) -> tuple[str, ...]:
        return _FROZEN if self._settings.size == "small" and corpus.encoder else ()

    def _add_start(self, corpus: SelectionCorpus, row: SelectionRow) -> tuple[str, list[str]]:
        """The encoder that a row starts from, and the runs that make it."""
        encoder, needs = self.add_original(corpus.encoder)
        if row.post is None:
            return encoder, needs
        figures, data = self._settings.figures, self._add_data(corpus)
        kind = "-".join(
            flag.removeprefix("--").partition("=")[2] or "speakers" for flag in row.post
        )
        name = f"post_trained/{corpus.name}/{kind}"
        # For relevance, the task itself sets the number of turns of its short contexts.
        short = "--pairs=relevance" in row.post
        flags = [
            "--task=post_training",
            f"--learning_rate={figures.post_learning_rate:g}",
            *row.post,
            *self._frozen_flags(corpus),
            *([] if short else [f"--context_turns={figures.context_turns}"]),
            f"--max_context_tokens={figures.context_tokens}",
            f"--max_response_tokens={figures.response_tokens}",
            *([f"--steps={figures.post_steps}"] if figures.post_steps else []),
            *LAST,
            *self._dtype_flags(),
            f"--encoder={encoder}",
            f"--data_dir={WORK}/{data}/data",
            f"--run_dir={WORK}/{name}/model",
        ]
        return f"{WORK}/{name}/model", [self.add_run(name, "train", flags, ENCODER, [*needs, data])]

    def _add_data(self, corpus: SelectionCorpus) -> str:
        """Adds the preparation of a corpus with held-out sessions."""
        kind, settings = corpus.kind, self._settings
        # In size paper, only the limits of contexts and responses cut a turn.
        longest = kind.longest if settings.size == "small" else settings.figures.context_tokens
        return self.add_data(
            Dialogues(
                corpus.name,
                corpus.train,
                corpus.encoder,
                longest,
                kind.min_turns,
                kind.dev_share,
                kind.test_share,
            )
        )
