"""Builds a semantic retrieval set (select.txt) from sentences with intents."""

from dcse_tf.cli.flags import run
from dcse_tf.tools.options import BuildRetrievalOptions


def build_retrieval(config: BuildRetrievalOptions) -> None:
    from dcse_tf.tools import retrieval_set as job

    built = job.build_retrieval(config)
    print(
        f"{built.sentences} sentences of {built.intents} intents, {built.queries} queries with "
        f"{built.positives:.1f} positives and {built.negatives:.1f} negatives in the mean"
    )
    print("left out: " + ", ".join(f"{count} {what}" for what, count in built.left_out.items()))
    print(f"the set is in {config.output}")


if __name__ == "__main__":
    run(BuildRetrievalOptions, build_retrieval)
