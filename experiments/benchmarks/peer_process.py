"""Peers: their environment, and a process in it that works when it is told to."""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from measure import Case, Round

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = pathlib.Path(__file__).parent / "peers"
DEFAULT_ENVIRONMENT = ROOT / ".venv-peers"
INSTALLED = ("torch", "transformers", "sentence-transformers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--peer_env and --no_peers."""
    parser.add_argument(
        "--peer_env",
        type=pathlib.Path,
        default=DEFAULT_ENVIRONMENT,
        help="virtual environment of the PyTorch peers, built where it is not there (1.5 GB); "
        "default: .venv-peers in the clone",
    )
    parser.add_argument("--no_peers", action="store_true", help="measure without the peers")


def build_environment(
    folder: pathlib.Path,
    constraints: pathlib.Path = FOLDER / "constraints.txt",
    installed: tuple[str, ...] = INSTALLED,
    flag: str = "peer_env",
) -> pathlib.Path:
    """The Python of an environment, installed anew where the constraints have changed.

    Args:
        folder: where it is, or will be.
        constraints: the exact versions.
        installed: the packages asked for.
        flag: the flag that names the folder, for messages.
    """
    python, record = folder / "bin" / "python", folder / "peers-constraints.txt"
    if record.is_file() and record.read_bytes() == constraints.read_bytes():
        return python
    # Only an environment is replaced, never another folder that someone has named.
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        sys.exit(f"error: --{flag}={folder}: expected a virtual environment or no folder")
    print(f"installing {', '.join(installed)} into {folder}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    # -I: what PYTHONPATH names is not in the environment, and pip would take it for installed.
    install = [str(python), "-I", "-m", "pip", "install", "--quiet", "-c", str(constraints)]
    subprocess.run([*install, *installed], check=True)
    record.write_bytes(constraints.read_bytes())
    return python


class Peer:
    """A process of peers/peer.py, or another there; it works only between request and answer.

    Args:
        python: see `build_environment`.
        mode: see the program.
        settings: of the mode.
        program: its file's name.

    Attributes:
        found: what the mode found out before its first round, such as its best batch size.
    """

    def __init__(
        self, python: pathlib.Path, mode: str, settings: dict[str, Any], program: str = "peer.py"
    ):
        self._process = subprocess.Popen(
            [str(python), str(FOLDER / program), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
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
        """One round of a variant."""
        counts = self._ask(variant)
        return Round(counts.pop("seconds"), counts)

    def case(self, name: str, variant: str, unit: str, flops: float = 0.0) -> Case:
        """A variant as a case."""
        return Case(name, lambda: self.run(variant), unit, flops)

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_encoder(
    stack: contextlib.ExitStack, environment: pathlib.Path, model: pathlib.Path, texts: list[str]
) -> Peer:
    """sentence-transformers on the sentences of a benchmark; see the mode "encode"."""
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    (folder / "sentences.json").write_text(json.dumps(texts), encoding="utf-8")
    settings = {
        "model": str(model),
        "sentences": str(folder / "sentences.json"),
        "batch_sizes": [16, 64, 128],
    }
    peer = stack.enter_context(Peer(build_environment(environment), "encode", settings))
    print(json.dumps(peer.found, indent=2), flush=True)
    return peer
