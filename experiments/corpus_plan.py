"""Plans the first runs of experiments on a corpus: its dialogues are joined and prepared and, if
there is no Chinese checkpoint, an encoder is trained on other Chinese text.
"""

import dataclasses
from collections.abc import Sequence

from plan import ENCODER, LAST
from runner import WORK, Run

_VOCABULARY, _LONGEST_CHINESE = 6000, 50


@dataclasses.dataclass(frozen=True)
class Dialogues:
    """A corpus and how to prepare it.

    Attributes:
        name: used in folders.
        train: the files, each entry "FORMAT:FILE,FILE".
        encoder: the checkpoint; "" for the one trained on Chinese text.
        longest: the length in tokens to which utterances are cut.
        min_turns: sessions with fewer turns are left out.
        dev_share, test_share: shares of the sessions that are held out.
    """

    name: str
    train: tuple[str, ...]
    encoder: str
    longest: int
    min_turns: int
    dev_share: float
    test_share: float


class CorpusPlanner:
    """Collects runs, each after the runs it needs. Methods that add a run return its name.

    Args:
        chinese_text: other Chinese dialogues, each entry "FORMAT:FILE".
        mlm_steps: training steps of the encoder made from them.
    """

    def __init__(self, chinese_text: Sequence[str], mlm_steps: int):
        self.runs: dict[str, Run] = {}
        self._chinese_text, self._mlm_steps = chinese_text, mlm_steps

    def add_run(self, name: str, job: str, flags: list[str], output: str, needs: list[str]) -> str:
        """Adds a job of the package, unless there is a run of this name."""
        command = ("-m", f"dcse_tf.cli.{job}", *flags)
        self.runs.setdefault(name, Run(name, command, output, tuple(dict.fromkeys(needs))))
        return name

    def add_data(self, dialogues: Dialogues) -> str:
        """Adds the preparation of a corpus with held-out sessions."""
        needs = [self._add_joined(dialogues.name, dialogues.train)]
        vocabulary = dialogues.encoder
        if not vocabulary:
            needs.append(self._add_chinese_text())
            vocabulary = f"{WORK}/{needs[-1]}/data/vocabulary"
        name = f"data/{dialogues.name}"
        flags = [
            "--format=jsonl",
            f"--input={WORK}/{needs[0]}/sessions.jsonl",
            f"--vocab={vocabulary}",
            f"--max_sequence_length={dialogues.longest}",
            f"--min_turns={dialogues.min_turns}",
            f"--dev_fraction={dialogues.dev_share:g}",
            f"--test_fraction={dialogues.test_share:g}",
            f"--output_dir={WORK}/{name}/data",
        ]
        return self.add_run(name, "prepare_data", flags, "data/manifest.json", needs)

    def add_original(self, encoder: str) -> tuple[str, list[str]]:
        """The encoder before any training on the corpus, and the runs that make it: none for a
        checkpoint; for "", one that trains it on Chinese text.
        """
        if encoder:
            return encoder, []
        data, name = self._add_chinese_text(), "encoders/chinese"
        flags = [
            "--task=mlm",
            "--encoder_size=mini",
            f"--steps={self._mlm_steps}",
            "--global_batch_size=128",
            "--learning_rate=5e-4",
            f"--warmup_steps={min(500, self._mlm_steps // 6)}",
            "--decay=linear",
            *LAST,
            f"--data_dir={WORK}/{data}/data",
            f"--run_dir={WORK}/{name}/model",
        ]
        return f"{WORK}/{name}/model", [self.add_run(name, "train", flags, ENCODER, [data])]

    def _add_chinese_text(self) -> str:
        joined = self._add_joined("chinese_text", self._chinese_text)
        flags = [
            "--format=jsonl",
            f"--input={WORK}/{joined}/sessions.jsonl",
            f"--vocab_size={_VOCABULARY}",
            f"--max_sequence_length={_LONGEST_CHINESE}",
            "--dev_fraction=0",
            "--test_fraction=0",
            f"--output_dir={WORK}/data/chinese_text/data",
        ]
        name = "data/chinese_text"
        return self.add_run(name, "prepare_data", flags, "data/manifest.json", [joined])

    def _add_joined(self, name: str, sources: Sequence[str]) -> str:
        """Adds the joining of files of several formats to one file of sessions."""
        run = f"joined/{name}"
        output = f"--output={WORK}/{run}/sessions.jsonl"
        command = ("experiments/join_corpora.py", output, *sources)
        self.runs.setdefault(run, Run(run, command, "sessions.jsonl"))
        return run
