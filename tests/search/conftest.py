"""Loading and tracing a model takes a second, so these tests load each one once."""

import dataclasses

import pytest

from dcse_tf.encoder.options import ModelOptions
from dcse_tf.encoder.sentence_encoder import SentenceEncoder


@pytest.fixture(scope="package")
def loaded():
    return {}


@pytest.fixture(autouse=True)
def _load_once(loaded, monkeypatch):
    load = SentenceEncoder.from_options

    def load_once(options):
        key = tuple(getattr(options, field.name) for field in dataclasses.fields(ModelOptions))
        if key not in loaded:
            loaded[key] = load(options)
        return loaded[key]

    monkeypatch.setattr(SentenceEncoder, "from_options", load_once)
