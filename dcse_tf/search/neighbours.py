"""The job that mines a corpus for neighbours, and writes them as a prepared corpus of pairs.

While the job runs, its intermediate results are stored beside the output: the embeddings of the
distinct texts, the turns' keys and the neighbours found. The output has

    train-*.tfrecord, train-blocks.npy, manifest.json   a corpus whose sessions are the pairs
    sample.txt                                          some pairs with their contexts, to read
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from dcse_tf.baselines.files import refuse_baseline
from dcse_tf.bert.checkpoints import resolve_checkpoint
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.manifest import Manifest, Split, read_manifest, write_manifest
from dcse_tf.data.prepare import VOCABULARY_FOLDER
from dcse_tf.data.records import SplitRecords, SplitWriter, serialize_session
from dcse_tf.data.turns import Turns, read_turns
from dcse_tf.encoder.batching import embed_inputs
from dcse_tf.encoder.checkpoint import load_checkpoint
from dcse_tf.encoder.graph import GraphBackend
from dcse_tf.encoder.load import refuse_reranker
from dcse_tf.encoder.options import ModelOptions
from dcse_tf.errors import InputError, name_output
from dcse_tf.evaluation.nearest import Neighbours
from dcse_tf.files import (
    MadeFrom,
    atomic_directory,
    atomic_file,
    lock_output,
    replace_folder,
    restore_replaced,
    resumable,
)
from dcse_tf.progress import Progress
from dcse_tf.search.embed import Rows
from dcse_tf.search.mutual import (
    Pairs,
    average_rows,
    find_others,
    find_others_by_index,
    keep_best,
    make_keys,
    pair_mutually,
)
from dcse_tf.search.nearest import import_faiss
from dcse_tf.search.options import ApproximateOptions, MineNeighboursOptions

SAMPLE_FILE = "sample.txt"
_SAMPLE = 50
_TEXTS_AT_A_TIME = 65_536
_TURNS_AT_A_TIME = 8192
_PAIRS_AT_A_TIME = 4096
_SHARDS = 8
# The settings that determine which neighbours are found, and which pairs are kept.
_FINDING = (
    *("context_weight", "center", "neighbours", "same_role"),
    *("index_type", *(field.name for field in dataclasses.fields(ApproximateOptions))),
)
_KEEPING = ("keep_share", "min_cosine")


@dataclasses.dataclass(frozen=True)
class Mined:
    """Statistics of what was found.

    Attributes:
        turns: number of turns in the corpus.
        texts: number of distinct texts among them.
        mutual: number of pairs of different texts with turns that are mutual neighbours.
        pairs: number of these pairs that are kept.
        paired_texts: number of distinct texts that are in a kept pair.
        paired_turns: number of turns whose text is in a kept pair.
        quantiles: the 0, 25, 50, 75 and 100% quantiles of the mutual pairs' similarities.
        least: similarity of the least similar pair that is kept.
    """

    turns: int
    texts: int
    mutual: int
    pairs: int
    paired_texts: int
    paired_turns: int
    quantiles: list[float]
    least: float

    def describe(self) -> str:
        """The statistics as text."""
        spread = ", ".join(f"{value:.3f}" for value in self.quantiles)
        return "\n".join(
            [
                f"{self.pairs} of {self.mutual} pairs of mutual neighbours are kept",
                f"{self.paired_texts / self.texts:.1%} of {self.texts} distinct utterances and "
                f"{self.paired_turns / self.turns:.1%} of {self.turns} turns have a partner",
                f"quantiles of similarity (0, 25, 50, 75, 100%): {spread}; lowest kept "
                f"{self.least:.3f}",
            ]
        )


def mine_neighbours(options: MineNeighboursOptions) -> Mined:
    """Mines a corpus for neighbours and writes the pairs.

    Raises:
        InputError: the corpus or the encoder cannot be used, or not together; no pair was found;
            or an interrupted job to be resumed had other settings.
        FileExistsError: the output exists and may not be replaced.
        LockedError: another process is writing the output.
        OutputError: the output cannot be written.
    """
    output, data_dir = pathlib.Path(options.output_dir), pathlib.Path(options.data_dir)
    if options.index_type != "exact":
        import_faiss(options.index_type)  # before the embedding, which takes long
    output.parent.mkdir(parents=True, exist_ok=True)
    restore_replaced(output)
    with lock_output(output), name_output(output):
        if output.exists() and not options.overwrite:
            raise FileExistsError(f"{output} already exists; give another folder, or `overwrite`")
        encoder = _load_encoder(options)
        manifest = read_manifest(data_dir, encoder.graph.vocabulary.fingerprint())
        made_from = _describe_sources(options, manifest, encoder)
        with resumable(output, made_from, options.overwrite) as work:
            turns = read_turns(data_dir, manifest.splits["train"])
            embeddings = _embed_texts(turns, encoder, work / "texts")
            rows = _order_turns(turns, options.same_role)
            keys = _write_keys(turns, rows, embeddings, options, work / "keys.npy")
            found = _find(turns, rows, keys, options, work)
            mutual = pair_mutually(found)
            in_order = Pairs(rows[mutual.first], rows[mutual.second], mutual.cosines)
            distinct, kept = keep_best(in_order, turns.text, options.keep_share, options.min_cosine)
            mined = _count(turns, distinct, kept, options)
            pairs = work / "pairs"
            with atomic_directory(pairs, overwrite=True) as folder:
                kept_by = {f"`{name}`": getattr(options, name) for name in _KEEPING}
                settings = {**made_from.values, **kept_by}
                _write_pairs(turns, kept, manifest, settings, folder)
                _write_sample(turns, kept, mined, data_dir, folder / SAMPLE_FILE)
            replace_folder(pairs, output)
    return mined


def _load_encoder(options: MineNeighboursOptions) -> GraphBackend:
    source = resolve_checkpoint(options.encoder, "encoder")
    refuse_baseline(source, "encoder")
    refuse_reranker(source, options.encoder, "encoder")
    shared = ("pooling", "prefix", "max_sequence_length", "batch_tokens", "compute_dtype")
    settings = {name: getattr(options, name) for name in shared}
    return load_checkpoint(source, ModelOptions(model=options.encoder, **settings))


def _describe_sources(
    options: MineNeighboursOptions, manifest: Manifest, encoder: GraphBackend
) -> MadeFrom:
    # With the encoder's settings, in which defaults are resolved.
    used: dict[str, Any] = {**options.to_dict(), **encoder.settings}
    names = ("pooling", "max_sequence_length", "compute_dtype", *_FINDING)
    return MadeFrom(
        {
            **manifest.source,
            "contents of `encoder`": encoder.fingerprint(),
            **{f"`{name}`": used[name] for name in names},
        }
    )


def _embed_texts(turns: Turns, encoder: GraphBackend, folder: pathlib.Path) -> np.ndarray:
    """Embeds every distinct text, and resumes after the blocks that are already done.

    Returns:
        An array on disk, float32 `[texts, dim]`.
    """
    total = len(turns.fingerprints)
    if not folder.exists():
        dim = len(embed_inputs(encoder, *encoder.read_tokens(turns.read_texts(0, 1)))[0])
        with atomic_directory(folder) as partial:
            Rows.create(partial, range(total), [], np.zeros([0, dim], np.float32))
    rows = Rows(folder)
    starts = range(0, total, _TEXTS_AT_A_TIME)
    tokens = turns.token_splits
    with Progress("tokens of distinct utterances", int(tokens[-1])) as progress:
        for block, start in enumerate(starts):
            if rows.is_done(block):
                continue
            stop = min(start + _TEXTS_AT_A_TIME, total)
            inputs = encoder.read_tokens(turns.read_texts(start, stop))

            def tell(done: int, of: int, before: int = int(tokens[start])) -> None:
                progress.update(before + done)

            rows.write(block, start, [embed_inputs(encoder, *inputs, progress=tell)])
    return np.load(rows.path, mmap_mode="r")


def _order_turns(turns: Turns, same_role: bool) -> np.ndarray:
    """An order of the turns in which those that may be neighbours are adjacent; int64 `[turns]`."""
    return np.argsort(turns.speaker if same_role else turns.speaker * 0, kind="stable")


def _write_keys(
    turns: Turns,
    rows: np.ndarray,
    embeddings: np.ndarray,
    options: MineNeighboursOptions,
    path: pathlib.Path,
) -> np.ndarray:
    """Writes the turns' keys in the order of `rows`; an array on disk, float32 `[turns, dim]`."""
    if not path.exists():
        dim = embeddings.shape[1]
        mean = average_rows(embeddings) if options.center else np.zeros(dim, np.float32)
        around = turns.around()
        with atomic_file(path) as partial, partial.open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (len(rows), dim)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, len(rows), _TURNS_AT_A_TIME):
                some = rows[start : start + _TURNS_AT_A_TIME]
                neighbours = around[0][some], around[1][some]
                weight = options.context_weight
                file.write(make_keys(embeddings, mean, turns.text[some], neighbours, weight).data)
    return np.load(path, mmap_mode="r")


def _find(
    turns: Turns,
    rows: np.ndarray,
    keys: np.ndarray,
    options: MineNeighboursOptions,
    work: pathlib.Path,
) -> Neighbours:
    """The neighbours of all turns, as indices into `rows`; results are stored role by role."""
    groups = np.unique(turns.speaker[rows], return_index=True)[1] if options.same_role else [0]
    found = Neighbours.none(len(rows), options.neighbours)
    with Progress("turns", len(rows)) as progress:
        for number, (start, stop) in enumerate(zip(groups, [*groups[1:], len(rows)])):
            own = slice(int(start), int(stop))
            path = work / f"found-{number:05}.npz"
            if not path.exists():
                some = rows[own]
                given = keys[own], turns.dialogue[some], turns.text[some], options.neighbours

                def tell(done: int, before: int = int(start)) -> None:
                    progress.update(before + done)

                if options.index_type == "exact":
                    near = find_others(*given, tell)
                else:
                    near = find_others_by_index(*given, options.index_type, options, tell)
                with atomic_file(path) as partial, partial.open("wb") as file:
                    np.savez(file, rows=near.rows, cosines=near.cosines)
            with np.load(path) as saved:
                near_rows = saved["rows"]
                found.rows[own] = np.where(near_rows >= 0, near_rows + start, -1)
                found.cosines[own] = saved["cosines"]
    return found


def _count(turns: Turns, mutual: Pairs, kept: Pairs, options: MineNeighboursOptions) -> Mined:
    """The statistics of what was found.

    Raises:
        InputError: no pair is left.
    """
    if not len(kept):
        sessions = f"{len(turns)} turns in {len(turns.session_ids)} sessions"
        what = (
            f"{len(mutual)} pairs of mutual neighbours, none above `min_cosine`="
            f"{options.min_cosine:g} among the most similar `keep_share`={options.keep_share:g}; "
            "lower the one or raise the other"
            if len(mutual)
            else "no two turns of different sessions and texts are mutual neighbours; give more "
            f"dialogues, or more `neighbours` than {options.neighbours}"
        )
        raise InputError(f"`data_dir`={options.data_dir}: of {sessions} {what}")
    texts = np.unique(turns.text[np.concatenate([kept.first, kept.second])])
    return Mined(
        turns=len(turns),
        texts=len(turns.fingerprints),
        mutual=len(mutual),
        pairs=len(kept),
        paired_texts=len(texts),
        paired_turns=int(np.isin(turns.text, texts).sum()),
        quantiles=np.quantile(mutual.cosines, [0.0, 0.25, 0.5, 0.75, 1.0]).tolist(),
        least=float(kept.cosines.min()),
    )


def _write_pairs(
    turns: Turns, pairs: Pairs, corpus: Manifest, settings: dict[str, Any], folder: pathlib.Path
) -> None:
    """Writes a corpus whose sessions are the pairs, in the order of their turns in `corpus`.

    Token ids and the tokenizer's fingerprint are those of `corpus`. A session is named after its
    two turns.
    """
    ordered = pairs[np.lexsort((pairs.second, pairs.first))]
    fingerprint = hashlib.sha256()
    with SplitWriter(folder, "train", _SHARDS, texts=False) as writer:
        for records in _serialize(turns, ordered):
            for record in records.records:
                fingerprint.update(record)
            writer.write(records)
    split: Split = writer.finish()
    write_manifest(
        folder,
        Manifest(
            max_sequence_length=corpus.max_sequence_length,
            corpus_fingerprint=fingerprint.hexdigest(),
            tokenizer_fingerprint=corpus.tokenizer_fingerprint,
            splits={"train": split},
            dropped={},
            settings=settings,
        ),
    )


def _serialize(turns: Turns, pairs: Pairs) -> Iterator[SplitRecords]:
    for start in range(0, len(pairs), _PAIRS_AT_A_TIME):
        some = pairs[start : start + _PAIRS_AT_A_TIME]
        found = SplitRecords(None)
        for both in zip(some.first.tolist(), some.second.tolist(), strict=True):
            tokens = [turns.tokens_of(turns.text[turn]) for turn in both]
            name = " ".join("{}:{}".format(*turns.locate(turn)) for turn in both)
            roles = [str(turns.speaker[turn]) for turn in both]
            lengths = [len(ids) for ids in tokens]
            record = serialize_session(name, np.concatenate(tokens), lengths, roles)
            found.records.append(record)
            found.turns.append(2)
            found.tokens += sum(lengths)
        yield found


def _write_sample(
    turns: Turns, pairs: Pairs, mined: Mined, data_dir: pathlib.Path, path: pathlib.Path
) -> None:
    """Writes some pairs as readable text, from the most similar to the least."""
    vocabulary = read_vocabulary(data_dir / VOCABULARY_FOLDER)
    start = vocabulary.count_prefix() + 1
    around = turns.around()

    def read(text: int) -> str:
        if text < 0:
            return "-"
        return vocabulary.spell(vocabulary.tokens[t] for t in turns.tokens_of(text)[start:-1])

    blocks = [mined.describe()]
    for place in np.unique(np.linspace(0, len(pairs) - 1, _SAMPLE).round().astype(int)):
        lines = [f"similarity {pairs.cosines[place]:.3f}"]
        for turn in (int(pairs.first[place]), int(pairs.second[place])):
            before, own, after = around[0][turn], turns.text[turn], around[1][turn]
            session, number = turns.locate(turn)
            lines += [f"  {read(own)}", f"      after:  {read(before)}"]
            lines += [f"      before: {read(after)}", f"      ({session}, turn {number + 1})"]
        blocks.append("\n".join(lines))
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
