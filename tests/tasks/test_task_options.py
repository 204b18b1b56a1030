"""What options of tasks refuse, and what they work out for a corpus."""

import math
import types

import pytest
from train_options import resolve, tiny_options

from dcse_tf.options import OptionError

CSE = {"task": "dialogue_cse"}
SELECTION = {"task": "response_selection"}
POST = {"task": "post_training"}
IN_DOMAIN = {**CSE, "cosine_weight": 0.8, "encoder": "start", "encoder_size": ""}
ESIM = {**SELECTION, "architecture": "esim", "encoder_size": ""}
# Flags, and the option that the refusal names.
REFUSED = [
    ({"run_dir": ""}, "run_dir"),
    ({"encoder_size": ""}, "encoder"),
    ({"encoder": "bert"}, "encoder"),
    *(({"encoder_size": "", "encoder": start}, "run_dir") for start in ("run/", "./run/encoder")),
    ({"encoder_size": "", "encoder": "start", "run_dir": "start/encoder"}, "run_dir"),
    ({"epochs": math.inf}, "epochs"), ({"clip_norm": 0.0}, "clip_norm"),
    ({"global_batch_size": 25, "negatives": 3, "logical_cpus": 2}, "global_batch_size"),
    ({"logical_cpus": 3, "negatives": 3}, "global_batch_size"),
    ({"dev_samples": 0, "dev_sts": "s"}, "best_metric"),
    ({"task": "mlm", "best_metric": "dev/cosine_r1"}, "best_metric"),
    ({"task": "mlm", "temperature": 0.2}, "temperature"),
    ({"task": "siamese_single", "context_turns": 1}, "context_turns"),
    ({**CSE, "mask_rate": 0.2}, "mask_rate"), ({**CSE, "negatives": 20}, "negatives"),
    ({**CSE, "global_batch_size": 9}, "negatives"),
    ({**CSE, "projection_dim": 8}, "projection_dim"),
    ({**CSE, "matryoshka_dims": ("4",)}, "matryoshka_dims"),
    ({**IN_DOMAIN, "matryoshka_dims": ("four",)}, "matryoshka_dims"),
    ({**IN_DOMAIN, "matryoshka_dims": ("4", "4")}, "matryoshka_dims"),
    ({**IN_DOMAIN, "matryoshka_dims": ("4",), "projection_dim": 8}, "matryoshka_dims"),
    ({**IN_DOMAIN, "projection_share": 0.5}, "projection_share"),
    ({**CSE, "cosine_weight": 1.0, "aggregation": "attention"}, "aggregation"),
    ({**CSE, "prediction_weight": 0.5}, "prediction_weight"),
    ({**CSE, "rehearsal_weight": 0.5}, "rehearsal_weight"),
    ({**CSE, "rehearsal_texts": 8}, "rehearsal_texts"),
    ({**CSE, "batch_form": "plain", "layout": "packed"}, "layout"),
    ({**CSE, "global_batch_size": 4, "negatives": 4}, "negatives"),
    ({**CSE, "best_metric": "dev/map"}, "best_metric"),
    ({**SELECTION, "lstm_units": 4}, "lstm_units"),
    ({**SELECTION, "auxiliary": ("chess",)}, "auxiliary"),
    ({**SELECTION, "auxiliary": ("none", "consistency")}, "auxiliary"),
    ({**SELECTION, "auxiliary": ("none",), "auxiliary_weight": 0.5}, "auxiliary_weight"),
    ({**SELECTION, "auxiliary": ("none",), "auxiliary_reads": "dialogue"}, "auxiliary_reads"),
    ({**SELECTION, "auxiliary": ("consistency",), "share_head": True}, "share_head"),
    ({**SELECTION, "auxiliary": ("restoration",), "consistency": "any"}, "consistency"),
    ({**SELECTION, "consistency": "pairs"}, "consistency"),
    ({**SELECTION, "global_batch_size": 1}, "global_batch_size"),
    ({**SELECTION, "global_batch_size": 4, "negatives": 4}, "negatives"),
    ({**SELECTION, "dev_sts": __file__}, "dev_sts"),
    ({**ESIM, "encoder_size": "tiny"}, "encoder_size"), ({**ESIM, "lora_rank": 2}, "lora_rank"),
    ({**ESIM, "layout": "packed"}, "layout"),
    ({**POST, "global_batch_size": 1}, "global_batch_size"), ({**POST, "pairs": "nsp"}, "pairs"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "name"), REFUSED, ids=str)
def test_what_cannot_be_is_refused_by_the_name_of_an_option(flags, name):
    with pytest.raises(OptionError, match=rf"^((give either )?`{name}`|unknown setting {name}\b)"):
        tiny_options(**flags)


def test_segments_share_the_positions_of_the_encoder():
    found = resolve(tiny_options(**SELECTION, max_response_tokens=40))
    assert (found.max_context_tokens, found.max_response_tokens) == (448, 40)
    halves = tiny_options(**POST, pairs="pieces", max_context_tokens=101, max_response_tokens=50)
    assert halves.segment_tokens == (76, 75)


def test_an_encoder_chosen_by_what_is_not_trained_is_told(caplog):
    for weight in (0.0, 1.0):
        chosen = tiny_options(**CSE, cosine_weight=weight)
        encoder = types.SimpleNamespace(output_shape=(None, None, 128))
        chosen.list_terms(types.SimpleNamespace(options=chosen, encoder=encoder))
    (told,) = caplog.messages
    assert told.startswith("`best_metric`=dev/matching_r1 chooses the encoder")
