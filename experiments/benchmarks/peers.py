"""PyTorch peers: their environment, and a process in it that works on request."""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

from measure import Case, Round

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


def find_python(args: argparse.Namespace) -> str:
    """The Python of the peers' environment; exits if there is none, saying how to make one."""
    python = args.peer_env / "bin/python"
    if not python.is_file():
        install = f"pip install -c {CONSTRAINTS} torch sentence-transformers"
        sys.exit(f"error: make it: python -m venv {args.peer_env} && {python} -m {install}")
    return str(python)


class Peer(contextlib.AbstractContextManager):
    """A process of torch_peer.py; it is idle except between request and answer.

    Args:
        args: the command line, with --peer_env.
        mode: a mode of the program.
        settings: the settings of the mode.

    Attributes:
        variants: what it can run.
    """

    def __init__(self, args: argparse.Namespace, mode: str, **settings: object):
        self._process = subprocess.Popen(
            [find_python(args), str(PROGRAM), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **QUIET, **KEPT_MEMORY},
        )
        self.variants = self._ask(json.dumps(settings, default=str))

    def _ask(self, line: str) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"error: the peer ended with status {self._process.wait()}")
        return json.loads(answer)

    def run(self, variant: str) -> Round:
        """Runs one round of a variant."""
        return Round(**self._ask(variant))

    def __exit__(self, *_: object) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()


def make_cases(
    stack: contextlib.ExitStack, args: argparse.Namespace, mode: str, **settings: object
) -> list[Case]:
    """The cases of a peer, which ends with the stack; none with --no_peers."""
    if args.no_peers:
        return []
    peer = stack.enter_context(Peer(args, mode, **settings))
    return [Case(name, functools.partial(peer.run, name)) for name in peer.variants]
