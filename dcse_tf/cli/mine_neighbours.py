"""`python -m dcse_tf.cli.mine_neighbours` is `dcse mine_neighbours`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("mine_neighbours")
