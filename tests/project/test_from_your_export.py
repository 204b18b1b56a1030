"""The page about exports: every command, on a small file of the form that it is for."""

import collections
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from dcse_tf.arguments import parse_flags
from dcse_tf.data.corpus import read_sessions
from dcse_tf.inspecting.corpus_report import InspectOptions

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs/from_your_export.md").read_text(encoding="utf-8")
EXPORTS = ROOT / "tests/fixtures/exports"
DAILY = [("a", "Is the shop open ?"), ("b", "Until six ."), ("a", "Then I must run !")]
FISH = [("human", "Name a fish"), ("gpt", "The pike"), ("human", "Another"), ("gpt", "The perch")]
EXPECTED = {
    "tickets.csv": {
        "12": [
            ("customer", "My parcel is late"),
            ("agent", "Hello; which order is it?"),
            ("customer", 'It says "B-44"'),
        ],
        "7": [("customer", "Is the blue one back?"), ("agent", "Yes, since Monday")],
    },
    "openai.jsonl": {
        "openai.jsonl-1": [("user", "What is in this picture?"), ("assistant", "A blue cup")],
        "openai.jsonl-2": [("user", "hi"), ("assistant", "hello")],
    },
    "sharegpt.json": {"q1": FISH},
    "dailydialog.jsonl": {"dailydialog.jsonl-1": DAILY},
    "zendesk.jsonl": {
        "501": [("9001", "My parcel is late"), ("42", "Which order is it?")],
        "502": [("9002", "I need an invoice"), ("42", "Sent just now")],
    },
    "rasa.jsonl": {"web-7": [("user", "is it open today"), ("bot", "From nine to six")]},
    "dialogues.jsonl": {
        "31": [("user", "Where is my parcel?"), ("admin", "Fish & Co. have it. It comes today.")]
    },
    "whatsapp.csv": {
        "12/31/20": [("Ana", "Are you coming? We have cake"), ("Ben B.", "On my way: ten minutes")],
        "1/1/21": [("Ana", "Happy new year"), ("Ben B.", "And to you")],
        "2/1/21": [("Ana", "¿y Juan?"), ("Ben B.", "llama al 52 55 1234 10 000 veces: nada")],
    },
    "slack.csv": {"1700000001.000100": [("U1", "is <the build> broken"), ("U2", "yes, fixing it")]},
}


def test_every_command_gives_the_turns(tmp_path, monkeypatch):
    """Those of the exports, and of what the page's programs make of them."""
    shutil.copytree(EXPORTS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "general").mkdir()
    (tmp_path / "slack.json").rename(tmp_path / "general/2023-11-14.json")
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    found = {}
    for command in re.findall("^dcse inspect_data (.*)$", PAGE, re.MULTILINE):
        options = parse_flags(InspectOptions, "inspect_data", shlex.split(command))
        sessions = read_sessions(options, options.count_bad_lines(), collections.Counter())
        found[",".join(options.input)] = {
            session.session_id: [(turn.role, turn.text) for turn in session.turns]
            for session in sessions
        }
    assert found == EXPECTED
