"""Turns files of dialogues into tokenised, sharded TFRecords."""

import gc

from dcse_tf.cli.flags import run
from dcse_tf.data.options import PrepareOptions


def prepare_data(config: PrepareOptions) -> None:
    from dcse_tf.data.prepare import prepare
    from dcse_tf.model.checkpoints import resolve_checkpoint

    # What the imports made stays: garbage collections that look through it, as the turns come and
    # go by the thousand, take a quarter of the time.
    gc.freeze()
    folder = resolve_checkpoint(config.vocab, "vocab", weights=False) if config.vocab else None
    manifest = prepare(config, folder)
    for name, split in manifest.splits.items():
        print(
            f"{name}: {split.sessions} sessions, {split.utterances} utterances, {split.tokens} "
            f"tokens, {split.truncated_utterances} utterances cut"
        )
    print("left out: " + ", ".join(f"{count} {what}" for what, count in manifest.dropped.items()))
    print(f"records, dev.jsonl, test.jsonl and manifest.json are in {config.output_dir}")


if __name__ == "__main__":
    run(PrepareOptions, prepare_data)
