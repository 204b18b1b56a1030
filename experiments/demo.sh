#!/usr/bin/env bash
# The main job on real dialogues, from set-up to nearest neighbours. Arguments: folder for the results, flags of train.
set -euo pipefail
cd "$(dirname "$0")/.."
bash experiments/install.sh demo
exec .venv/bin/python experiments/demo.py "${1:-runs/demo}" "${@:2}"
