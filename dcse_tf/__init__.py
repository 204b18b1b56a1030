"""DialogueCSE (EMNLP 2021) in TensorFlow 2 and Keras 3: sentence embeddings learnt from dialogues.

    import dcse_tf

    dcse_tf.prepare_data(
        format="jsonl", input="dialogues.jsonl", vocab="bert-base-uncased", output_dir="data"
    )
    dcse_tf.train(preset="recommended", data_dir="data", encoder="bert-base-uncased", run_dir="run")
    dcse_tf.evaluate(model="run", response_selection="data/test.jsonl")
    encoder = dcse_tf.SentenceEncoder.load("run")
    embeddings = encoder.encode(["where is my parcel", "it left today"])
    dcse_tf.export(run_dir="run", output_dir="exported")

Importing the package does not import TensorFlow; the first use of what it exports does.
"""

import importlib

__version__ = "0.1.0"

from dcse_tf import machine
from dcse_tf.errors import InputError
from dcse_tf.options import OptionError

machine.set_up()

# The modules of the names that are imported when they are first used: the options of all jobs take
# longer to import than a small export to load. The jobs are functions of `dcse_tf.api`.
_MODULES = {
    "Calibration": "dcse_tf.search.calibration",
    "Clusters": "dcse_tf.discovery.clusters",
    "Reranker": "dcse_tf.reranker.reranker",
    "SentenceEncoder": "dcse_tf.encoder.sentence_encoder",
    "register_baseline": "dcse_tf.baselines.registry",
    "register_export": "dcse_tf.exporting.export_formats",
    "register_format": "dcse_tf.data.formats",
    "register_task": "dcse_tf.tasks",
    "register_term": "dcse_tf.tasks",
    **dict.fromkeys(("LockedError", "OutputError"), "dcse_tf.errors"),
    **dict.fromkeys(("Stopped", "TrainingError"), "dcse_tf.training.controller"),
}
_JOBS = (
    *("discover", "embed", "evaluate", "export"),
    *("fit_baseline", "merge", "prepare_data", "train"),
)
__all__ = ["InputError", "OptionError", "__version__", *_JOBS, *_MODULES]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module(_MODULES.get(name, "dcse_tf.api")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
