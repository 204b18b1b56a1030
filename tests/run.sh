#!/usr/bin/env bash
# Format, lint, types, tests. With --fast, only the tests that are not marked slow, for use while one
# edits. Other arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
bash experiments/install.sh demo,test
# Bytecode is kept even where the environment forbids it: without it, each of the many processes that
# tests start takes 6 s to compile what TensorFlow imports.
unset PYTHONDONTWRITEBYTECODE
.venv/bin/ruff format --check --quiet . || { echo "error: run .venv/bin/ruff format ." >&2; exit 1; }
.venv/bin/ruff check --quiet .
# Types are checked beside the tests: it takes one core for the better part of a minute.
.venv/bin/mypy >.venv/mypy.log 2>&1 &
types=$!
tier=()
if [[ ${1:-} == --fast ]]; then
  shift
  tier=(-m "not slow")
fi
# Two at once, for half of the time goes into tracing, which takes one core; a file's tests share
# what they have prepared. In conftest's order: by xdist's own, the files of one long test come
# last and alone. Each process takes up to 10 GB.
status=0
.venv/bin/python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder "${tier[@]}" "$@" || status=$?
wait "$types" || { cat .venv/mypy.log >&2; exit 1; }
exit "$status"
