"""Embeds the sentences of a file."""

from dcse_tf.cli.flag_options import run
from dcse_tf.config import EmbedConfig


def embed(config: EmbedConfig) -> None:
    from dcse_tf.jobs import embed as job

    lines, dim = job.embed(config)
    print(f"{lines} embeddings of {dim} dimensions are in {config.output}")


if __name__ == "__main__":
    run(EmbedConfig, embed)
