"""Records the settings and inputs of a run in its directory, and checks them when it is resumed."""

import pathlib

from dcse_tf.bert.checkpoints import ENCODER_FOLDER, list_weight_files
from dcse_tf.data.manifest import Manifest
from dcse_tf.encoder.backend import hash_maps
from dcse_tf.errors import InputError
from dcse_tf.files import hash_file, hash_folder, require_same, write_record
from dcse_tf.input_files import read_json_object
from dcse_tf.tasks.spec import Setup
from dcse_tf.tasks.train_options import TrainOptions
from dcse_tf.training.checkpoint_store import find_checkpoint
from dcse_tf.training.hooks import RECORD_FILE, read_kept

CONFIG_FILE = "config.json"
INPUTS_FILE = "inputs.json"
CORPUS_FILE = "corpus.json"
_REMEDY = "use the same, or another `run_dir`"


def begin_run(
    options: TrainOptions, given: TrainOptions, inputs: dict[str, str], write: bool = True
) -> TrainOptions:
    """Records the settings and inputs of a run; if the run is resumed, compares them first.

    A run without a checkpoint has learnt nothing yet, so any of its options may still be changed.
    Only one of several workers may `write`. Takes the options, resolved and as they were `given`,
    and the `inputs` of `describe_inputs`. Returns the options: a resumed run keeps the default
    `warmup_steps` that it was started with. Raises InputError if an option or input that affects
    training has changed, or the directory has no checkpoint, but files that would be replaced.
    """
    run_dir = pathlib.Path(options.run_dir)
    path, folder = run_dir / CONFIG_FILE, run_dir / ENCODER_FOLDER
    checkpoint = find_checkpoint(run_dir)
    if write and not checkpoint:
        unknown = path.is_file() and "task" not in read_json_object(path)
        if unknown or (folder.is_dir() and not (folder / RECORD_FILE).is_file()):
            raise InputError(f"{run_dir}: has files that no training wrote; give another `run_dir`")
        try:
            last_step = read_kept(folder).last_step
        except InputError:
            last_step = None  # nothing is there that a training wrote whole
        if last_step is not None:
            raise InputError(
                f"{folder}: is of a training that ended at step {last_step} and would be replaced, "
                f"since {run_dir} has no intact checkpoint to resume; give another `run_dir`"
            )
    if path.is_file() and checkpoint:
        before = TrainOptions.read_json(path)
        if given.warmup_steps < 0:
            # If `steps` changes, the warm-up remains a tenth of the original number of steps.
            options = options.replace(warmup_steps=before.warmup_steps)
        # Paths are compared by what they name.
        fixed, remedy = before.select(resume="same", path=""), _REMEDY
        if options.fixes_steps:
            # A rate or a weight reaches 0 at the last step: with another one it would jump.
            fixed["steps"] = before.steps
            remedy += " (`steps` cannot change with `decay`=linear or `auxiliary_fade`)"
        # Of another task, only the options that both have can be compared, among them `task`.
        now = options.to_dict()
        was, now = ({f"`{x}`": values[x] for x in fixed if x in now} for values in (fixed, now))
        require_same(was, now, f"{path}: the run was begun with other settings", remedy)
        problem = f"{run_dir / INPUTS_FILE}: the run was begun with other data or files"
        require_same(read_json_object(run_dir / INPUTS_FILE), inputs, problem, _REMEDY)
    if write:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_record(path, options.to_dict())
        write_record(run_dir / INPUTS_FILE, inputs)
    return options


def describe_inputs(setup: Setup) -> dict[str, str]:
    """Fingerprints of a run's inputs, by the names under which a change is reported.

    Of every option that names what training reads, the content counts and not the name.
    """
    options, manifest = setup.options, setup.manifest
    longest = manifest.max_sequence_length
    splits = ", ".join(
        f"{name} {split.sessions} sessions, {split.tokens} tokens, {len(split.shards)} shards"
        for name, split in manifest.splits.items()
    )
    found = {
        "the corpus": manifest.corpus_fingerprint,
        "the vocabulary": manifest.tokenizer_fingerprint,
        "the corpus' splits and lengths": f"{splits}, at most {longest} tokens",
    }
    if setup.source:
        files = list_weight_files(setup.source)
        found |= {f"the encoder's {path.name}": hash_file(path) for path in files}
    if setup.modules.maps:
        found["the encoder's Dense modules"] = hash_maps(setup.modules.maps)
    for name, value in (options.select(path="reads") | options.select(path="files")).items():
        if name in ("data_dir", "encoder") or not value:
            continue
        for path in map(pathlib.Path, value if isinstance(value, tuple) else (value,)):
            parts = hash_folder(path) if path.is_dir() else {"": hash_file(path)}
            own = f" {path.name}" if isinstance(value, tuple) else ""
            found |= {f"`{name}`{own} {part}".strip(): digest for part, digest in parts.items()}
    return found


def record_corpus(run_dir: pathlib.Path, manifest: Manifest) -> None:
    """Writes what the model card says of the corpus, which an export may not find where it was."""
    files = manifest.settings.get("input") or ()
    facts = {
        "format": str(manifest.settings.get("format", "")),
        "files": ", ".join(pathlib.PurePath(str(name)).name for name in files),
        **{
            f"{name} split": f"{split.sessions:,} sessions, {split.utterances:,} utterances, "
            f"{split.tokens:,} tokens, {split.truncated_utterances:,} utterances cut"
            for name, split in manifest.splits.items()
        },
        "longest utterance": f"{manifest.max_sequence_length} tokens, the rest was cut",
        "fingerprint (SHA-256)": manifest.corpus_fingerprint,
    }
    write_record(run_dir / CORPUS_FILE, {name: value for name, value in facts.items() if value})
