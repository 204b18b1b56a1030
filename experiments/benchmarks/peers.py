"""PyTorch peers: their environment, and a process in it that works on request."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

from measure import Round
from runs import ROOT

PROGRAM = pathlib.Path(__file__).with_name("torch_peer.py")
CONSTRAINTS = PROGRAM.with_name("torch_constraints.txt")
# No downloads, and few messages.
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
# The C library keeps all memory, so that page faults, which dcse_tf avoids, do not decide.
KEPT_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**33),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**26),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --peer_env and --no_peers."""
    parser.add_argument(
        "--peer_env",
        type=pathlib.Path,
        default=ROOT / ".venv-peers",
        help="virtual environment of the PyTorch peers, built if missing (1.5 GB); "
        "default: .venv-peers in the clone",
    )
    parser.add_argument("--no_peers", action="store_true", help="measure without the peers")


def build_environment(folder: pathlib.Path) -> pathlib.Path:
    """Returns the Python of an environment, which is rebuilt if the constraints have changed."""
    python, record = folder / "bin/python", folder / "constraints.txt"
    wanted = CONSTRAINTS.read_bytes()
    if record.is_file() and record.read_bytes() == wanted:
        return python
    # Replaces only an environment, never any other folder given by mistake.
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        sys.exit(f"error: {folder}: expected a virtual environment or no folder")
    installed = ("torch", "transformers", "sentence-transformers")
    print(f"installing {', '.join(installed)} into {folder}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    # -I ignores PYTHONPATH, whose packages pip would take for installed in the environment.
    install = [str(python), "-I", "-m", "pip", "install", "--quiet", "-c", str(CONSTRAINTS)]
    subprocess.run([*install, *installed], check=True)
    record.write_bytes(wanted)
    return python


class Peer:
    """A process of torch_peer.py; it is idle except between request and answer.

    Args:
        args: the command line, with --peer_env.
        mode: a mode of the program.
        settings: the settings of the mode.

    Attributes:
        found: what the mode reported before its first round.
    """

    def __init__(self, args: argparse.Namespace, mode: str, **settings: Any):
        self._process = subprocess.Popen(
            [str(build_environment(args.peer_env)), str(PROGRAM), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **QUIET, **KEPT_MEMORY},
        )
        self._mode = mode
        self.found = self._ask(json.dumps(settings))

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"error: the peer {self._mode} ended with status {self._process.wait()}")
        return json.loads(answer)

    def run(self, variant: str) -> Round:
        """Runs one round of a variant."""
        return Round(**self._ask(variant))

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()
