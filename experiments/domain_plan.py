"""Plans the runs of a domain experiment: preparation, a model for each row and seed, its scores.

Seeds are done one after another, each for all rows.
"""

import dataclasses
import pathlib

from corpus_plan import CorpusPlanner, Dialogues
from domain_rows import PARTS, DomainRow
from domain_settings import DomainSettings, RetrievalFile
from plan import ENCODER, LAST
from runner import WORK, Run, Runner

# Flags that `evaluate` refuses for the other kind of evaluation.
_ALONE = {
    "retrieval": ("--projection",),
    "responses": (
        *(
            "--matching",
            "--candidates",
            "--context_turns",
            "--same_role",
            "--nosame_role",
            "--max_samples",
        ),
        *("--join_consecutive", "--nojoin_consecutive"),
    ),
}
_HELD_OUT = 0.1
_GUARD_SENTENCES = 2000
# Every model reads up to 128 tokens of a text, however few it was trained with: cut guard sentences
# would say nothing about the effect of training.
_READ = "--max_sequence_length=128"
# A start made here is small and trained on other text, so all of it is updated, with a learning
# rate for a few hundred steps.
_MADE = ("--learning_rate=1e-4", "--freeze_layers=0", "--nofreeze_embeddings")


@dataclasses.dataclass(frozen=True)
class DomainPlan:
    """The runs of an experiment, and the paths of their results.

    Attributes:
        runs: name -> run.
        files: set -> path of its select.txt, which a run may yet have to build.
        retrieval, responses: row -> results file of each seed; one file if nothing is random.
        trainings: row -> name of each seed's training run; empty if nothing is trained.
    """

    runs: dict[str, Run]
    files: dict[RetrievalFile, str]
    retrieval: dict[DomainRow, list[pathlib.Path]]
    responses: dict[DomainRow, list[pathlib.Path]]
    trainings: dict[DomainRow, list[str]]

    def keep_done(self, runner: Runner) -> "DomainPlan":
        """Without runs that are not done with the present settings, and what they made."""
        return dataclasses.replace(
            self,
            runs={name: run for name, run in self.runs.items() if runner.is_done(name)},
            retrieval=runner.keep_done(self.retrieval),
            responses=runner.keep_done(self.responses),
            trainings={
                row: list(filter(runner.is_done, names)) for row, names in self.trainings.items()
            },
        )


def make_plan(settings: DomainSettings) -> DomainPlan:
    """Plans the runs that the rows need; rows with equal flags for a job share its run."""
    planner = _Planner(settings)
    found = DomainPlan(planner.runs, {}, *({row: [] for row in settings.rows} for _ in range(3)))
    for place, seed in enumerate(settings.seeds):
        for row in settings.rows:
            if place and not row.seeded:
                continue
            if row.train:
                found.trainings[row].append(planner.add_training(row, seed))
            for results, add in (
                (found.retrieval, planner.add_retrieval),
                (found.responses, planner.add_responses),
            ):
                results[row].append(settings.work_dir / add(row, seed) / "results.json")
    for each in (*settings.domain, *settings.guards):
        found.files[each] = planner.locate(each).replace(WORK, str(settings.work_dir))
    return found


class _Planner(CorpusPlanner):
    """Collects the runs; methods that add a run return its name."""

    def __init__(self, settings: DomainSettings):
        super().__init__(settings.chinese_text, settings.mlm_steps)
        self._settings = settings

    def add_training(self, row: DomainRow, seed: int) -> str:
        """Adds the training of a row."""
        settings, data = self._settings, self._add_data()
        start, needs = self.add_original(settings.encoder)
        name = self._name("rows", row, seed, "train", "mine")
        needs = [*needs, data]
        pairs = []
        if row.mine:
            needs.append(self._add_neighbours(row, start))
            pairs = [f"--neighbours_dir={WORK}/{needs[-1]}/pairs"]
        flags = [
            f"--steps={settings.steps}",
            *LAST,
            *(() if settings.encoder else _MADE),
            *settings.train_flags,
            *row.train,
            *pairs,
            f"--encoder={start}",
            f"--data_dir={WORK}/{data}/data",
            f"--run_dir={WORK}/{name}/model",
            f"--seed={seed}",
        ]
        return self.add_run(name, "train", flags, ENCODER, needs)

    def _add_neighbours(self, row: DomainRow, start: str) -> str:
        """Adds the mining of neighbour pairs with the start, which is the same for all seeds."""
        data = self._add_data()
        name = self._name("neighbours", dataclasses.replace(row, train=()), 0, "mine")
        flags = [
            *row.mine,
            f"--encoder={start}",
            f"--data_dir={WORK}/{data}/data",
            f"--output_dir={WORK}/{name}/pairs",
        ]
        needs = [*self.add_original(self._settings.encoder)[1], data]
        return self.add_run(name, "mine_neighbours", flags, "pairs/manifest.json", needs)

    def _add_merged(self, row: DomainRow, seed: int, trained: str) -> str:
        """Adds the merge of the trained encoder with the start."""
        start, needs = self.add_original(self._settings.encoder)
        name = self._name("merged", row, seed, "train", "mine", "merge")
        flags = [
            *row.merge,
            f"--start={start}",
            f"--trained={WORK}/{trained}/model",
            f"--output_dir={WORK}/{name}/model",
        ]
        needs = [*needs, trained]
        if {"--center", "--share=auto"} & set(row.merge):
            needs.append(self._add_data())
            flags.append(f"--data_dir={WORK}/{needs[-1]}/data")
        return self.add_run(name, "merge", flags, "model/merge.json", needs)

    def add_retrieval(self, row: DomainRow, seed: int) -> str:
        """Adds the scoring of a row on one half of all sets."""
        sets = (*self._settings.domain, *self._settings.guards)
        built = [self._add_built(each) for each in sets if each.column]
        flags = [
            f"--retrieval={','.join(map(self.locate, sets))}",
            f"--half={self._settings.half}",
        ]
        return self._add_scores("retrieval", row, seed, flags, built)

    def add_responses(self, row: DomainRow, seed: int) -> str:
        """Adds the scoring of a row in response selection on held-out dialogues."""
        data = self._add_data()
        held_out = "test" if self._settings.half == "report" else "dev"
        flags = [f"--response_selection={WORK}/{data}/data/{held_out}.jsonl"]
        return self._add_scores("responses", row, seed, flags, [data])

    def locate(self, each: RetrievalFile) -> str:
        """The path of a set's select.txt, with `WORK` for the work folder."""
        return f"{WORK}/sets/{each.name}/select.txt" if each.column else each.file

    def _add_scores(
        self, kind: str, row: DomainRow, seed: int, flags: list[str], needs: list[str]
    ) -> str:
        model, made = self._add_model(row, seed)
        name = self._name(f"{kind}/{self._settings.half}", row, seed, *PARTS)
        (refused,) = (names for other, names in _ALONE.items() if other != kind)
        flags = [
            f"--model={model}",
            _READ,
            *(flag for flag in row.evaluate if flag.partition("=")[0] not in refused),
            *flags,
            f"--output={WORK}/{name}/results.json",
        ]
        return self.add_run(name, "evaluate", flags, "results.json", [*made, *needs])

    def _add_model(self, row: DomainRow, seed: int) -> tuple[str, list[str]]:
        """A row's model, and the runs that make it, if any."""
        model, needs = self.add_original(self._settings.encoder)
        if row.train:
            needs = [self.add_training(row, seed)]
            if row.merge:
                needs = [self._add_merged(row, seed, needs[0])]
            model = f"{WORK}/{needs[0]}/model"
        if row.fit:
            data, name = self._add_data(), self._name("fitted", row, seed, *PARTS[:-1])
            flags = [
                *row.fit,
                f"--encoder={model}",
                f"--data_dir={WORK}/{data}/data",
                f"--output_dir={WORK}/{name}/model",
            ]
            output = "model/baseline.json"
            needs = [self.add_run(name, "fit_baseline", flags, output, [*needs, data])]
            model = f"{WORK}/{name}/model"
        return model, needs

    def _add_built(self, each: RetrievalFile) -> str:
        """Adds the building of a set from a table of labelled sentences."""
        name = f"sets/{each.name}"
        flags = [
            f"--format={pathlib.Path(each.file).suffix.removeprefix('.')}",
            f"--input={each.file}",
            f"--intent_column={each.column}",
            f"--sentences={_GUARD_SENTENCES}",
            f"--output={self.locate(each)}",
        ]
        return self.add_run(name, "build_retrieval", flags, "select.txt", [])

    def _add_data(self) -> str:
        settings = self._settings
        return self.add_data(
            Dialogues(
                settings.name,
                settings.train,
                settings.encoder,
                settings.longest,
                settings.min_turns,
                _HELD_OUT,
                _HELD_OUT,
            )
        )

    def _name(self, kind: str, row: DomainRow, seed: int, *parts: str) -> str:
        """A run's name, from the first row with the same flags for the given jobs.

        All known rows are searched, so that the name does not depend on which rows are measured.
        """

        def flags(other: DomainRow) -> list[tuple[str, ...]]:
            return [getattr(other, part) for part in parts]

        first = next(other for other in self._settings.known if flags(other) == flags(row))
        suffix = f"-seed{seed}" if row.seeded else ""
        return f"{kind}/{self._settings.name}/{first.name}{suffix}"
