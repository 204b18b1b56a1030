"""Embeds the sentences of a file."""

from dcse_tf.cli.flags import run
from dcse_tf.tools.options import EmbedOptions


def embed(config: EmbedOptions) -> None:
    from dcse_tf.tools import embed as job

    lines, dim = job.embed(config)
    print(f"{lines} embeddings of {dim} dimensions are in {config.output}")


if __name__ == "__main__":
    run(EmbedOptions, embed)
