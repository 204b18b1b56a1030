"""Builds a semantic retrieval set (select.txt) from sentences with intents."""

from dcse_tf.cli.flag_options import run
from dcse_tf.config import BuildRetrievalConfig


def build_retrieval(config: BuildRetrievalConfig) -> None:
    from dcse_tf.jobs import build_retrieval as job

    built = job.build_retrieval(config)
    print(
        f"{built.sentences} sentences of {built.intents} intents, {built.queries} queries with "
        f"{built.positives:.1f} positives and {built.negatives:.1f} negatives in the mean"
    )
    print("left out: " + ", ".join(f"{count} {what}" for what, count in built.left_out.items()))
    print(f"the set is in {config.output}")


if __name__ == "__main__":
    run(BuildRetrievalConfig, build_retrieval)
