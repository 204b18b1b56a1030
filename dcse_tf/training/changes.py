"""Shows, after training, what it changed: compares the kept encoder with the initial one."""

import pathlib
from typing import Any

from absl import logging

from dcse_tf.bert.checkpoints import ENCODER_FOLDER, hash_files
from dcse_tf.encoder.checkpoint import load_checkpoint
from dcse_tf.encoder.load import refuse_reranker
from dcse_tf.encoder.model_options import ModelOptions
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.evaluation.names import CANDIDATES
from dcse_tf.input_files import read_json_object
from dcse_tf.inspecting.changes import describe, format_text
from dcse_tf.inspecting.changes_job import (
    JSON_FILE,
    PAGE_FILE,
    measure_changes,
    note_settings,
    read_held_out,
    write_changes,
)
from dcse_tf.tasks import TASKS
from dcse_tf.tasks.spec import Setup
from dcse_tf.training.best_encoder import read_kept
from dcse_tf.training.controller import Hook

_CHOSEN_BY = (
    "The kept step was chosen by its scores on dev sessions, so the gain in response selection "
    "shown here may be slightly too high."
)
_TEST_UNUSED = "The test sessions were not used."


class ShowChanges(Hook):
    """Writes changes.md and changes.json into the run's folder when training has ended.

    A run that is resumed at its end already has these files, and does not compute them again.

    Args:
        setup: the setup of the run.
    """

    def __init__(self, setup: Setup):
        self._setup = setup
        self._run_dir = pathlib.Path(setup.options.run_dir)

    def end(self, step: int) -> None:
        if not self._setup.options.changes_samples:
            return
        reason = self._why_not()
        if not reason:
            try:
                self._show()
            except InputError as error:
                reason = str(error)
        if reason:
            logging.info("what the training changed is not shown: %s", reason)

    def _why_not(self) -> str:
        setup = self._setup
        if TASKS[setup.options.task].make_scorer:
            return "a re-ranker gives no embeddings"
        if setup.source is None:
            return "the training started from random weights"
        if not setup.options.dev_samples:
            return "`dev_samples`=0 asks for nothing to be measured"
        if read_kept(self._run_dir / ENCODER_FOLDER).step == 0:
            return "the run kept the encoder that it started from"
        return ""

    def _show(self) -> None:
        setup, options = self._setup, self._setup.options
        made_from = self._made_from()
        if self._is_done(made_from):
            logging.info("what the training changed is in %s", self._run_dir / PAGE_FILE)
            return
        held_out = read_held_out(
            setup.data_dir,
            setup.manifest,
            options.changes_samples,
            candidates=CANDIDATES,
            context_turns=options.context.turns,
            max_samples=options.dev_samples,
            # The draws of the dev evaluations, so that the run ends with one figure for a score.
            seed=options.seed,
        )
        assert setup.source
        before = self._load_start(setup.source)
        after = SentenceEncoder.load(self._run_dir)
        found = measure_changes(before, after, held_out)
        notes = (*held_out.notes, *note_settings(before, after))
        if held_out.samples:  # without them, no step was chosen by the scores of these sessions
            notes += (_CHOSEN_BY,)
        notes += (_TEST_UNUSED,)
        write_changes(self._run_dir, found, notes, made_from, "What the training changed")
        logging.info(
            "what the training changed:\n%s\n\n%s\n%s\nall of it is in %s",
            format_text(found),
            describe(found),
            " ".join(notes),
            self._run_dir / PAGE_FILE,
        )

    def _load_start(self, source: pathlib.Path) -> SentenceEncoder:
        """The start with the prefix and the longest sentence of the corpus, as during training: its
        own are no part of what the training changed.
        """
        name, longest = str(source), self._setup.manifest.max_sequence_length
        refuse_reranker(source, name, "encoder")
        options = ModelOptions(model=name, max_sequence_length=longest)
        backend = load_checkpoint(source, options, vocabulary=self._setup.vocabulary)
        return SentenceEncoder(backend, name)

    def _made_from(self) -> dict[str, Any]:
        """The inputs and settings that the figures depend on."""
        setup, options = self._setup, self._setup.options
        assert setup.source
        return {
            "before": hash_files(setup.source),
            "after": hash_files(self._run_dir / ENCODER_FOLDER),
            "the corpus": setup.manifest.corpus_fingerprint,
            "sentences": options.changes_samples,
            "sessions": options.dev_samples,
            "seed": options.seed,
        }

    def _is_done(self, made_from: dict[str, Any]) -> bool:
        path = self._run_dir / JSON_FILE
        try:
            return path.is_file() and read_json_object(path).get("made_from") == made_from
        except InputError:  # the file is damaged, so the figures are computed again
            return False
