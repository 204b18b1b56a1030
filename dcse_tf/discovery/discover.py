"""The discover job: what is said in dialogues without a label, how often, and what was answered."""

import array
import collections
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from dcse_tf.bert.encoder_options import ModelOptions
from dcse_tf.data.corpus import CorpusOptions, read_long_sessions
from dcse_tf.data.dialogue import fold_spaces, make_splitter
from dcse_tf.discovery.cluster_report import Found, choose_typical, describe_clusters, write_report
from dcse_tf.discovery.clustering import cluster, find_centres, measure_sharpness
from dcse_tf.discovery.clusters import SHARES_OF, Clusters, follow
from dcse_tf.encoder.backend import normalize
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import require
from dcse_tf.files import atomic_directory, hash_number, require_same
from dcse_tf.options import option

_FIRST = "first speaker"
_CUSTOMERS = {"customer", "user", "client", "human", "visitor"}
_TEXTS_AT_A_TIME = 8192
_ANSWERS = 100  # distinct ones of a cluster that three typical ones are chosen from


class DiscoverOptions(CorpusOptions, ModelOptions):
    """Groups what the speakers of a role say by its meaning."""

    role: str = option(
        "",
        "Whose turns, whatever its case. Default: customer, user, client, human or visitor, if "
        "there is one of them, or else the first speaker of each dialogue.",
    )
    turns: str = option(
        "first",
        "The role's first turn of each dialogue, its request, or all its turns.",
        choices=("first", "all"),
    )
    min_words: int = option(
        3, "Pass over turns with fewer words: 'good morning' asks for nothing.", minimum=1
    )
    context_share: float = option(
        0.0,
        "Add this times the mean embedding of the turns before and after a turn to its own.",
        minimum=0.0,
        maximum=1.0,
    )
    clusters: int = option(0, "Clusters to find. 0: chosen by the data.", minimum=0, maximum=10_000)
    previous: str = option(
        "",
        "Report of earlier dialogues by the same encoder, whose clusters keep their numbers.",
        path="reads",
    )
    output_dir: str = option(
        "",
        "Folder for report.html, clusters.jsonl, turns.tsv, retrieval.txt and the centres.",
        required=True,
        path="writes",
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")


class _Turns(NamedTuple):
    """All turns of a corpus as numbers, int `[turns]`, and what they stand for."""

    sessions: np.ndarray
    roles: np.ndarray
    texts: np.ndarray
    session_ids: list[str]
    role_names: list[str]  # in lower case
    distinct: list[str]  # the texts, whatever their case
    left_out: collections.Counter[str]


def discover(config: DiscoverOptions) -> list[dict[str, Any]]:
    """Writes the report, and returns its clusters, see `dcse_tf.discover`."""
    require("sklearn", "discover", "discover")  # before anything long is done
    encoder = SentenceEncoder.from_options(config)
    previous = Clusters.load(config.previous, encoder) if config.previous else None
    if previous:
        now = {f"`{name}`": getattr(config, name) for name in SHARES_OF}
        problem = f"`previous`={config.previous}: its shares are of other turns"
        require_same(previous.shares_of, now, problem, "give the same")
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        turns = _read_turns(config)
        role, chosen = _choose_turns(config, turns)
        # Distinct texts of the chosen turns, by a hash: in no order that the corpus has.
        of_turns = turns.texts[chosen]
        used, which, counts = np.unique(of_turns, return_inverse=True, return_counts=True)
        order = np.argsort([hash_number(turns.distinct[text].casefold()) for text in used])
        used, counts, places = used[order], counts[order], np.argsort(order)[which]
        if config.clusters > len(used):
            config.refuse("clusters", f"there are only {len(used)} distinct texts")
        logging.info("%d turns of %s, %d distinct texts", len(chosen), role, len(used))
        texts = [turns.distinct[text] for text in used]
        keys = rows = _embed(encoder, texts)
        if config.context_share:
            around = _embed_around(encoder, turns, chosen, places)
            keys = normalize(rows + config.context_share * around).astype(np.float32)
        labels = cluster(keys, config.clusters, counts)
        if config.clusters > labels.max() + 1:
            logging.warning("%d clusters only: no more embeddings differ", labels.max() + 1)
        centres, sharpness = find_centres(rows, labels), measure_sharpness(keys, labels)
        similarity = np.einsum("nd,nd->n", rows, centres[labels])
        answers = _find_answers(encoder, turns, chosen, labels[places])
        of_texts = texts, counts, rows, labels, centres, similarity, sharpness
        found = Found(*of_texts, turns.sessions[chosen], places, answers)
        followed = follow(previous, rows, counts, labels)
        place = pathlib.Path(config.model).absolute()  # holds in other working folders, too
        records = describe_clusters(found, followed)
        summary = {
            "model": encoder.fingerprint(),
            "role": role,
            "turns": len(chosen),
            "sessions": len(np.unique(found.sessions)),
            "texts": len(texts),
            "clusters": len(records),
            "sharpness": round(float(np.average(sharpness, weights=counts)), 3),
            "left_out": turns.left_out,
            "gone": followed.gone,
            "next_id": followed.next_id,
            "settings": config.to_dict()
            | {"model": str(place if place.exists() else config.model)},
        }
        write_report(folder, found, records, summary)
        _write_turns(folder / "turns.tsv", turns, chosen, found, followed.ids)
    return records


def _read_turns(config: DiscoverOptions) -> _Turns:
    left_out, numbers = collections.Counter[str](), array.array("q")
    session_ids, distinct = list[str](), list[str]()
    roles, known = dict[str, int](), dict[str, int]()
    for session in read_long_sessions(config, left_out):
        for turn in session.turns:
            text = known.setdefault(turn.text.casefold(), len(distinct))
            if text == len(distinct):
                distinct.append(turn.text)
            role = roles.setdefault(turn.role.casefold(), len(roles))
            numbers.extend((len(session_ids), role, text))
        session_ids.append(fold_spaces(session.session_id))
    sessions, speakers, texts = np.array(numbers, np.int64).reshape(-1, 3).T.copy()
    return _Turns(sessions, speakers, texts, session_ids, list(roles), distinct, left_out)


def _choose_turns(config: DiscoverOptions, turns: _Turns) -> tuple[str, np.ndarray]:
    """The role, and the places of its turns that are clustered; counts what is left out."""
    names = turns.role_names
    begins, sessions = np.unique(turns.sessions, return_index=True, return_inverse=True)[1:]
    role = config.role or next((each for each in names if each in _CUSTOMERS), _FIRST)
    if config.role and role.casefold() not in names:
        config.refuse("role", f"expected one of {', '.join(map(repr, names[:20]))}")
    speakers = turns.roles[begins][sessions] if role == _FIRST else names.index(role.casefold())
    own = np.flatnonzero(turns.roles == speakers)
    split, long = make_splitter("auto"), np.zeros(len(turns.distinct), bool)
    for text in np.unique(turns.texts[own]).tolist():
        long[text] = len(split(turns.distinct[text])) >= config.min_words
    chosen = own[long[turns.texts[own]]]
    if not len(chosen):
        config.refuse("min_words", f"each of the {len(own)} turns of {role!r} has fewer")
    if config.turns == "all":
        turns.left_out["turns_of_few_words"] = len(own) - len(chosen)
    else:
        chosen = chosen[np.unique(turns.sessions[chosen], return_index=True)[1]]
        turns.left_out["sessions_without_such_a_turn"] = len(begins) - len(chosen)
    return role, chosen


def _embed(encoder: SentenceEncoder, texts: list[str]) -> np.ndarray:
    """Embeddings of length 1, float32 `[texts, dim]`."""
    rows, done = np.empty((len(texts), encoder.dim), np.float32), 0
    for block in encoder.encode_blocks(texts, _TEXTS_AT_A_TIME):
        rows[done : done + len(block)] = normalize(block)
        done += len(block)
    return rows


def _embed_around(
    encoder: SentenceEncoder, turns: _Turns, chosen: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """The mean embedding of the turns before and after each text's turns, `[texts, dim]`."""
    total = np.zeros((places.max() + 1, encoder.dim), np.float32)
    number = np.zeros((len(total), 1), np.float32)
    for offset in (-1, 1):
        there = np.clip(chosen + offset, 0, len(turns.texts) - 1)
        inside = (there != chosen) & (turns.sessions[there] == turns.sessions[chosen])
        texts, which = np.unique(turns.texts[there[inside]], return_inverse=True)
        rows = _embed(encoder, [turns.distinct[text] for text in texts])
        np.add.at(total, places[inside], rows[which])
        np.add.at(number, places[inside], 1.0)
    return total / np.maximum(number, 1.0)


def _find_answers(
    encoder: SentenceEncoder, turns: _Turns, chosen: np.ndarray, labels: np.ndarray
) -> list[list[dict[str, Any]]]:
    """The answers given most to the turns of each cluster: the next turns, of other speakers."""
    after = np.minimum(chosen + 1, len(turns.texts) - 1)
    answered = turns.sessions[after] == turns.sessions[chosen]
    answered &= turns.roles[after] != turns.roles[chosen]
    pairs = np.stack([labels[answered], turns.texts[after[answered]]])
    (owners, texts), counts = np.unique(pairs, axis=1, return_counts=True)
    order = np.lexsort([-counts, owners])
    kept = [order[owners[order] == each][:_ANSWERS] for each in range(labels.max() + 1)]
    distinct, which = np.unique(texts[np.concatenate(kept)], return_inverse=True)
    said = [turns.distinct[text] for text in distinct]
    rows = _embed(encoder, said)
    parts = np.split(which, np.cumsum([len(each) for each in kept])[:-1])
    return [
        choose_typical([said[place] for place in part], counts[mine], rows[part], 3)
        for part, mine in zip(parts, kept, strict=True)
    ]


def _write_turns(
    path: pathlib.Path, turns: _Turns, chosen: np.ndarray, found: Found, ids: Sequence[int]
) -> None:
    begins = np.searchsorted(turns.sessions, found.sessions)
    with path.open("w", encoding="utf-8") as file:
        file.write("session\tturn\tcluster\tsimilarity\ttext\n")
        for place, text, begin in zip(chosen, found.turn_texts, begins, strict=True):
            session, number = turns.session_ids[turns.sessions[place]], ids[found.labels[text]]
            cells = (session, place - begin, number, f"{found.similarity[text]:.4f}")
            print(*cells, found.texts[text], sep="\t", file=file)
