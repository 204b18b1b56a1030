"""PyTorch peers: their environment, and a process in it that works on request."""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from jobs import LONGEST, ROOT, Inputs, find_model
from measure import Case, Round

from dcse_tf.processors import available_processors

PROGRAM = pathlib.Path(__file__).with_name("torch_peer.py")
CONSTRAINTS = PROGRAM.with_name("torch_constraints.txt")
TIERS = PROGRAM.with_name("tier_peer.py")
# No downloads, and few messages.
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
# The C library keeps all memory, so that page faults, which dcse_tf avoids, do not decide.
KEPT_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**33),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**26),
}
DEFAULT_ENVIRONMENT = ROOT / ".venv-peers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --peer_env and --no_peers."""
    parser.add_argument(
        "--peer_env",
        type=pathlib.Path,
        default=DEFAULT_ENVIRONMENT,
        help="virtual environment of the PyTorch peers, built if missing (1.5 GB); "
        "default: .venv-peers in the clone",
    )
    parser.add_argument("--no_peers", action="store_true", help="measure without the peers")


def build_environment(
    folder: pathlib.Path,
    installed: Sequence[str] = ("torch", "transformers", "sentence-transformers"),
    constraints: Sequence[pathlib.Path] = (CONSTRAINTS,),
) -> pathlib.Path:
    """Returns the Python of an environment, which is rebuilt if the constraints have changed.

    Args:
        folder: the environment's folder.
        installed: arguments of pip install.
        constraints: pip constraint files with the exact versions.
    """
    python, record = folder / "bin" / "python", folder / "constraints.txt"
    wanted = b"".join(path.read_bytes() for path in constraints)
    if record.is_file() and record.read_bytes() == wanted:
        return python
    # Replaces only an environment, never any other folder given by mistake.
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        sys.exit(f"error: {folder}: expected a virtual environment or no folder")
    print(f"installing {' '.join(installed)} into {folder}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    # -I ignores PYTHONPATH, whose packages pip would take for installed in the environment.
    install = [str(python), "-I", "-m", "pip", "install", "--quiet"]
    files = [word for path in constraints for word in ("-c", str(path))]
    subprocess.run([*install, *files, *installed], check=True)
    record.write_bytes(wanted)
    return python


class Peer:
    """A process of a peer program; it is idle except between request and answer.

    Args:
        python: the Python of its environment, see `build_environment`.
        mode: a mode of the program.
        settings: the settings of the mode.
        program: the program; torch_peer.py by default.

    Attributes:
        found: what the mode reported before its first round.
    """

    def __init__(
        self,
        python: pathlib.Path,
        mode: str,
        settings: dict[str, Any],
        program: pathlib.Path | None = None,
    ):
        self._process = subprocess.Popen(
            [str(python), str(program or PROGRAM), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **QUIET, **KEPT_MEMORY},
        )
        self._mode = mode
        self.found = self._ask(json.dumps(settings))

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the peer {self._mode} ended with status {self._process.wait()}")
        return json.loads(answer)

    def run(self, variant: str) -> Round:
        """Runs one round of a variant."""
        counts = self._ask(variant)
        return Round(counts.pop("seconds"), counts)

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_cases(stack: contextlib.ExitStack, args: argparse.Namespace, inputs: Inputs) -> list[Case]:
    """Makes cases of a subject's peers, on the same dialogues."""
    modes = {"train": "plain", "select": "select", "embed": "encode"}
    if args.subject not in modes:
        return []
    mode = modes[args.subject]
    program = TIERS if args.subject == "embed" else PROGRAM
    settings = {
        "model": find_model(args.encoder),
        "longest": LONGEST,
        "dialogues": str(inputs.dialogues),
        "sentences": str(inputs.sentences[1]),
        "threads": available_processors(),
    }
    python = build_environment(args.peer_env)
    peer = stack.enter_context(Peer(python, mode, settings, program))
    print(json.dumps(peer.found), flush=True)
    return [
        Case(variant, peer.found["unit"], functools.partial(peer.run, variant))
        for variant in peer.found["variants"]
    ]
