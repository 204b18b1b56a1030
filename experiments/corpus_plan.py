"""Plans the first runs of experiments on a corpus: its dialogues are joined and prepared and, if
there is no Chinese checkpoint, an encoder is trained on other Chinese text.
"""

import dataclasses
from collections.abc import Sequence

from plan import ENCODER, LAST, VOCABULARY, Planner, make_mlm_flags
from runner import WORK

_LONGEST_CHINESE = 50


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


class CorpusPlanner(Planner):
    """Collects the first runs of experiments on a corpus.

    Args:
        chinese_text: other Chinese dialogues, each entry "FORMAT:FILE".
        mlm_steps: training steps of the encoder made from them.
    """

    def __init__(self, chinese_text: Sequence[str], mlm_steps: int):
        super().__init__()
        self._chinese_text, self._mlm_steps = chinese_text, mlm_steps

    def add_data(self, dialogues: Dialogues) -> str:
        """Adds the preparation of a corpus with held-out sessions."""
        needs = [self.add_joined(f"joined/{dialogues.name}", dialogues.train)]
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
            *make_mlm_flags(["--encoder_size=mini"], self._mlm_steps),
            *LAST,
            f"--data_dir={WORK}/{data}/data",
            f"--run_dir={WORK}/{name}/model",
        ]
        return f"{WORK}/{name}/model", [self.add_run(name, "train", flags, ENCODER, [data])]

    def _add_chinese_text(self) -> str:
        joined = self.add_joined("joined/chinese_text", self._chinese_text)
        flags = [
            "--format=jsonl",
            f"--input={WORK}/{joined}/sessions.jsonl",
            f"--vocab_size={VOCABULARY}",
            f"--max_sequence_length={_LONGEST_CHINESE}",
            "--dev_fraction=0",
            "--test_fraction=0",
            f"--output_dir={WORK}/data/chinese_text/data",
        ]
        name = "data/chinese_text"
        return self.add_run(name, "prepare_data", flags, "data/manifest.json", [joined])
