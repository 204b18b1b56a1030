"""A folder for sentence-transformers and transformers."""

import json
import pathlib
from typing import Any

from dcse_tf.data.tokenization import write_tokenizer
from dcse_tf.export.postprocessing import list_maps
from dcse_tf.models import bert_encoder, checkpoints
from dcse_tf.models.sentence_encoder import SentenceEncoder
from dcse_tf.models.sentence_modules import SentenceModules, write_modules

FORMAT = "sentence_transformers"


def write_sentence_transformers(
    folder: pathlib.Path, source: pathlib.Path, encoder: SentenceEncoder, unit_norm: bool
) -> None:
    """Writes an encoder as sentence-transformers saves one: transformer, pooling, further modules.

    Args:
        folder: where to; it exists.
        source: the checkpoint folder that the encoder is of.
        encoder: what to export.
        unit_norm: whether embeddings are scaled to unit length.

    Raises:
        InputError: the encoder has a part that the library has no module for.
    """
    maps = list_maps(encoder.postprocessing, FORMAT)
    backbone = bert_encoder.load_backbone(source)
    bert_encoder.save_backbone(folder, backbone, true_config(source))
    write_tokenizer(folder, encoder.vocabulary, encoder.max_sequence_length)
    checkpoints.write_max_sequence_length(folder, encoder.max_sequence_length)
    modules = SentenceModules(encoder.pooling, maps, unit_norm)
    write_modules(folder, modules, backbone.hidden_dim)
    settings: dict[str, Any] = {
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    text = json.dumps(settings, indent=2) + "\n"
    (folder / "config_sentence_transformers.json").write_text(text, encoding="utf-8")


def true_config(source: pathlib.Path) -> dict[str, Any]:
    """The configuration of a checkpoint, with what the encoder computes where that is different.

    keras-hub's BERT has the tanh form of GELU, whatever the file says.
    """
    config = checkpoints.read_config(source)
    for name in ("_name_or_path", "torch_dtype", "transformers_version"):
        config.pop(name, None)
    return {
        **config,
        "dtype": "float32",
        "hidden_act": "gelu_pytorch_tanh",
        "model_type": "bert",
    }
