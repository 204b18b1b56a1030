"""A fixture under which each encoder is loaded once; loading and tracing one takes a second."""

import dataclasses

import pytest

from dcse_tf.bert.encoder_options import ModelOptions
from dcse_tf.encoder.sentence_encoder import SentenceEncoder

_loaded: dict[tuple, SentenceEncoder] = {}


@pytest.fixture(autouse=True)
def load_once(monkeypatch):
    load = SentenceEncoder.from_options

    def look_up(options):
        key = tuple(getattr(options, field.name) for field in dataclasses.fields(ModelOptions))
        if key not in _loaded:
            _loaded[key] = load(options)
        return _loaded[key]

    monkeypatch.setattr(SentenceEncoder, "from_options", look_up)
