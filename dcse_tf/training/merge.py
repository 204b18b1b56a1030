"""Averages the weights of an encoder before and after training.

The average keeps much of what fine-tuning taught and loses little of what the initial model could
do (WiSE-FT, Wortsman et al. 2022, equation 1; of sentence encoders LM-Cocktail, Xiao et al. 2023).
The weights must be close to each other, as are those of encoders trained from one start.
"""

import pathlib

import numpy as np

from dcse_tf.bert import checkpoints
from dcse_tf.bert.sentence_modules import write_modules
from dcse_tf.bert.tokenizer import number_as_written, read_vocabulary
from dcse_tf.bert.weights import read_bert_tensors, write_bert
from dcse_tf.encoder.backend import hash_maps
from dcse_tf.encoder.load import refuse_reranker, resolve_transformer
from dcse_tf.files import atomic_directory, write_record
from dcse_tf.options import Options, option

Tensors = dict[str, np.ndarray]
RECORD_FILE = "merge.json"  # the model card reads it
# Entries of config.json that determine which tensors there are and what they compute.
_SHAPE = (*checkpoints.SIZES, "layer_norm_eps")


class MergeOptions(Options):
    """Averages an encoder's weights from before and after training."""

    start: str = option(
        "", "Encoder before: a folder, hub name, package:NAME or run.", required=True, path="reads"
    )
    trained: str = option("", "The encoder trained from it: likewise.", required=True, path="reads")
    output_dir: str = option("", "Folder to write the encoder to.", required=True, path="writes")
    share: float = option(
        0.7, "Weight of the trained one; less keeps more of the start.", minimum=0.0, maximum=1.0
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")


def merge(options: MergeOptions) -> pathlib.Path:
    """Writes (1 - share) start + share trained as an encoder, with a record of both; returns its
    folder. See `dcse_tf.merge`.
    """
    start, modules_before = resolve_transformer(options.start, "start", keeps_dense=True)
    refuse_reranker(start, options.start, "start")
    trained, modules = resolve_transformer(options.trained, "trained", keeps_dense=True)
    refuse_reranker(trained, options.trained, "trained")
    before, config = checkpoints.read_config(start), checkpoints.read_config(trained)
    vocabularies = [read_vocabulary(folder) for folder in (start, trained)]
    wrong = [f"{x} {config[x]}, not {before[x]}" for x in _SHAPE if config[x] != before[x]]
    if len({checkpoints.approximates_gelu(each) for each in (before, config)}) > 1:
        wrong.append("another hidden_act")
    if len({each.with_prefix("").fingerprint() for each in vocabularies}) > 1:
        wrong.append("another vocabulary")
    if hash_maps(modules_before.maps) != hash_maps(modules.maps):
        wrong.append("another Dense module")
    if wrong:
        options.refuse("trained", "; ".join([*wrong, "expected an encoder trained from `start`"]))

    tensors = read_bert_tensors(start, before), read_bert_tensors(trained, config)
    with atomic_directory(pathlib.Path(options.output_dir), options.overwrite) as folder:
        # Everything but the weights is the trained encoder's.
        checkpoints.copy_checkpoint(trained, folder, weights=False)
        number_as_written(vocabularies[1], config).write(folder)
        checkpoints.write_max_sequence_length(folder, checkpoints.read_max_sequence_length(trained))
        if modules.pooling:
            write_modules(folder, modules, config["hidden_size"])
        write_bert(folder, config, average_tensors(*tensors, options.share))
        record = {
            "start": {"name": options.start, "files": checkpoints.hash_files(start)},
            "trained": {"name": options.trained, "files": checkpoints.hash_files(trained)},
            "share": options.share,
        }
        write_record(folder / RECORD_FILE, record)
    return pathlib.Path(options.output_dir)


def average_tensors(start: Tensors, trained: Tensors, share: float) -> Tensors:
    """(1 - share) start + share trained for each tensor, float32 of the same names and shapes;
    shares of 0 and 1 are bit-exact copies.
    """
    if share in (0.0, 1.0):
        return dict(trained if share else start)
    pairs = ((x, np.float64(start[x]), np.float64(trained[x])) for x in start)
    return {x: np.asarray((1.0 - share) * a + share * b, np.float32) for x, a, b in pairs}
