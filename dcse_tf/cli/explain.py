"""Shows what the similarity of a response and its context is made of."""

from dcse_tf.cli.flags import run
from dcse_tf.tools.options import ExplainOptions


def explain(config: ExplainOptions) -> None:
    from dcse_tf.tools import explain as job

    print(job.explain(config))
    print(f"explanation.html, explanation.json and the heatmaps are in {config.output_dir}")


if __name__ == "__main__":
    run(ExplainOptions, explain)
