"""Searching a corpus: an index built, stopped, used again, refused; queries and answers."""

import hashlib
import io
import json
import shutil
import sys

import numpy as np
import pytest
from tiny_bert import DIM, build_backbone, save_checkpoint
from tiny_reranker import save_reranker

from dcse_tf.baselines.fit_baseline import fit_baseline
from dcse_tf.baselines.word_vectors import WordVectorsOptions
from dcse_tf.cli.queries import search
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError, LockedError
from dcse_tf.exporting.job import export
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.files import lock_output
from dcse_tf.matching.head_files import list_head_maps, project, write_heads
from dcse_tf.matching.projection import build_heads
from dcse_tf.options import OptionError
from dcse_tf.reranker import reranker as reranker_module
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.search import embed, job
from dcse_tf.search import index as layout
from dcse_tf.search.embed_options import EmbedOptions
from dcse_tf.search.options import SearchOptions

# Of 10 lines: one blank, "ok" three times, "where is my parcel" twice.
LINES = [
    *["where is my parcel", "ok", "", "好的发货", "i want a refund for the blue cup"],
    *["ok", "the cup is blue", "where is my parcel", "it left today", "ok"],
]
DISTINCT = list(dict.fromkeys(line for line in LINES if line))
QUERIES = ["where is my blue parcel", "好的", "the cup is blue"]


class Stopped(Exception):
    pass


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("saved") / "model", build_backbone())


@pytest.fixture(scope="module")
def encoder(model):
    return SentenceEncoder.load(model)


@pytest.fixture(scope="module")
def loaded():
    return {}


@pytest.fixture(autouse=True)
def _load_once(loaded, monkeypatch):
    """Loading and tracing a model takes a second; its settings decide which."""
    load = SentenceEncoder.from_options

    def load_once(config):
        key = (
            config.model,
            config.pooling,
            config.projection,
            config.max_sequence_length,
            config.compute_dtype,
            config.truncate_dim,
        )
        if key not in loaded:
            loaded[key] = load(config)
        return loaded[key]

    monkeypatch.setattr(SentenceEncoder, "from_options", load_once)


@pytest.fixture
def config(model, tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    index = (str(tmp_path / "index"),)
    return SearchOptions(model=str(model), corpus=str(path), index=index, top=4)


def names(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


def ask(config, queries):
    with job.open_searcher(config) as searcher:
        return [hits for _, hits in searcher.answer_all(queries)]


def scale(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_answers_are_the_texts_of_highest_cosine(config, encoder):
    cosines = scale(encoder.encode(QUERIES)) @ scale(encoder.encode(DISTINCT)).T
    for query, row, hits in zip(QUERIES, cosines, ask(config, QUERIES), strict=True):
        best = np.argsort(-row)[:4]
        assert [hit.text for hit in hits] == [DISTINCT[place] for place in best], query
        np.testing.assert_allclose([hit.cosine for hit in hits], row[best], atol=1e-5)
        assert [hit.rank for hit in hits] == [1, 2, 3, 4]
        assert [hit.line for hit in hits] == [LINES.index(hit.text) + 1 for hit in hits]
        assert [hit.count for hit in hits] == [LINES.count(hit.text) for hit in hits]
        assert hits[0].cosine > hits[-1].cosine + 1e-3


def test_texts_that_are_cut_are_told_once_a_job(config, monkeypatch, caplog):
    """Of the distinct texts five have more than the two words that there is room for."""
    monkeypatch.setattr(job, "_QUERIES_AT_A_TIME", 1)
    ask(config.replace(max_sequence_length=4), QUERIES)
    told = [text for text in caplog.messages if "more than the 4 tokens" in text]
    assert [text.partition(" have")[0] for text in told] == ["5 lines", "2 distinct texts"]


def test_responses_are_found_behind_the_heads(config, model, encoder, tmp_path):
    with pytest.raises(InputError, match=r"`find`=responses: .* has no projection heads"):
        ask(config.replace(find="responses"), QUERIES)
    shutil.copytree(model, tmp_path / "headed")
    maps = list_head_maps(build_heads(DIM, 8, 5.0, seed=1))
    write_heads(tmp_path / "headed", maps)
    headed = config.replace(model=str(tmp_path / "headed"), find="responses")
    (hits,) = ask(headed, ["ok [EOT] the cup is blue"])
    mean = encoder.encode(["ok", "the cup is blue"]).mean(axis=0, keepdims=True)
    context = scale(project(mean, maps["context"]))
    cosines = (scale(project(encoder.encode(DISTINCT), maps["response"])) @ context.T)[:, 0]
    best = np.argsort(-cosines)[:4]
    assert [hit.text for hit in hits] == [DISTINCT[place] for place in best]
    np.testing.assert_allclose([hit.cosine for hit in hits], cosines[best], atol=1e-5)
    # The same index is not one of texts that mean the same.
    with pytest.raises(InputError, match="was built with other settings or inputs"):
        ask(headed.replace(find="similar"), QUERIES)
    with pytest.raises(OptionError, match="give `find`=responses, which uses both heads"):
        config.replace(projection="context")
    with pytest.raises(OptionError, match="`truncate_dim`=8: the heads of `find`=responses"):
        headed.replace(truncate_dim=8)
    with pytest.raises(OptionError, match="`pooling`=cls: the heads of `find`=responses were"):
        headed.replace(pooling="cls")


def test_a_text_of_the_corpus_finds_itself_first(config):
    for text, hits in zip(DISTINCT, ask(config, DISTINCT), strict=True):
        assert hits[0].text == text
        assert hits[0].cosine == pytest.approx(1.0, abs=1e-5)


def test_each_distinct_text_is_encoded_once(config, monkeypatch):
    texts, batches = [], SentenceEncoder.from_options(config).backend
    read = batches.read
    monkeypatch.setattr(batches, "read", lambda some: texts.extend(some) or read(some))
    with job.open_searcher(config):
        assert sorted(text for text in texts if text) == sorted(DISTINCT)


def test_an_index_built_by_a_run_serves_its_export_and_the_other_way_round(
    config, model, verified_here, tmp_path
):
    """Unless the export changes the embeddings."""
    expected = ask(config, QUERIES)
    for unit_norm in (False, True):
        folder = str(tmp_path / f"export-{unit_norm}")
        export(ExportOptions(run_dir=str(model), output_dir=folder, unit_norm=unit_norm))
    exported = config.replace(model=str(tmp_path / "export-False"))
    assert _texts(ask(exported, QUERIES)) == _texts(expected)
    other = exported.replace(index=(str(tmp_path / "other"),))
    assert _texts(ask(other, QUERIES)) == _texts(expected)
    assert _texts(ask(other.replace(model=str(model)), QUERIES)) == _texts(expected)
    with pytest.raises(InputError, match="contents of `model`"):
        ask(config.replace(model=str(tmp_path / "export-True")), QUERIES)


def _texts(answers):
    return [[hit.text for hit in hits] for hits in answers]


def test_an_index_is_used_again_without_its_corpus(config, tmp_path, monkeypatch):
    before = ask(config, QUERIES)
    (tmp_path / "corpus.txt").unlink()
    monkeypatch.setattr(job, "build_index", None)
    assert ask(config.replace(corpus=""), QUERIES) == before


def test_what_is_built_is_complete_and_alone(config, tmp_path):
    ask(config, [])
    assert names(tmp_path) == ["corpus.txt", "index"]
    assert names(tmp_path / "index") == ["embeddings.npy", "made_from.json", "texts"]
    assert names(tmp_path / "index/texts") == [
        "counts.npy",
        "lines.npy",
        "offsets.npy",
        "texts.txt",
    ]
    made_from = json.loads((tmp_path / "index/made_from.json").read_text())
    corpus = hashlib.sha256((tmp_path / "corpus.txt").read_bytes()).hexdigest()
    assert made_from["contents of `corpus`"] == corpus


def test_an_index_of_given_embeddings_is_the_one_that_is_built_without(
    config, tmp_path, monkeypatch
):
    expected = ask(config, QUERIES)
    rows = str(tmp_path / "rows.npy")
    embed.embed(EmbedOptions(model=config.model, input=config.corpus, output=rows))
    monkeypatch.setattr(job, "embed", None)
    found = ask(config.replace(index=(str(tmp_path / "other"),), embeddings=rows), QUERIES)
    assert _texts(found) == _texts(expected)
    assert [[hit.line for hit in hits] for hits in found] == [
        [hit.line for hit in hits] for hits in expected
    ]
    files = (tmp_path / name / "embeddings.npy" for name in ("index", "other"))
    np.testing.assert_allclose(*map(np.load, files), atol=1e-6)


def test_an_embedding_of_zeros_is_that_of_a_text_without_a_known_word(config, tmp_path):
    vectors = {"parcel": [3.0, 4.0], "cup": [0.0, 1.0]}
    (tmp_path / "vectors.json").write_text(json.dumps(vectors))
    model, rows = str(tmp_path / "averaged"), str(tmp_path / "rows.npy")
    options = {"output_dir": model, "word_vectors": str(tmp_path / "vectors.json")}
    fit_baseline(WordVectorsOptions(**options))
    embed.embed(EmbedOptions(model=model, input=config.corpus, output=rows))
    asked = config.replace(model=model, embeddings=rows, top=1)
    (found,) = ask(asked, ["a parcel"])
    assert [(hit.text, hit.cosine) for hit in found] == [("where is my parcel", 1.0)]

    changed = np.load(rows)
    changed[0] = 0.0
    np.save(rows, changed)
    with pytest.raises(InputError, match="row 1 is not the embedding of line 1"):
        ask(asked.replace(overwrite=True), ["a parcel"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-2], r"an array of \[8, \d+\], .* of which line 9 has a text"),
        (lambda rows: rows[:, :-1], "expected .* columns"),
        (lambda rows: np.roll(rows, 1, axis=0), "row .* is not the embedding of line"),
    ],
)
def test_embeddings_of_something_else_are_refused(config, tmp_path, change, message):
    rows = tmp_path / "rows.npy"
    embed.embed(EmbedOptions(model=config.model, input=config.corpus, output=str(rows)))
    np.save(rows, change(np.load(rows)))
    with pytest.raises(InputError, match=message):
        ask(config.replace(embeddings=str(rows)), QUERIES)


@pytest.mark.parametrize("save", [np.savez, lambda file, rows: np.save(file, rows.astype(str))])
def test_embeddings_that_are_no_array_of_numbers_are_refused(config, tmp_path, save):
    rows = tmp_path / "rows"
    with rows.open("wb") as file:
        save(file, np.zeros([10, 4]))
    with pytest.raises(InputError, match="not a NumPy array of numbers, as embed writes it"):
        ask(config.replace(embeddings=str(rows)), QUERIES)


def test_without_an_index_nothing_is_left(config, tmp_path):
    kept = ask(config, QUERIES)
    (tmp_path / "elsewhere").mkdir()
    assert ask(config.replace(index=()), QUERIES) == kept
    assert names(tmp_path / "elsewhere") == []


def read_files(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def stop(*_):
    raise Stopped


def stop_build(config, monkeypatch, place="moving"):
    owner, name = {
        "embedding": (embed.Rows, "write"),
        "moving": (job, "replace_folder"),
    }[place]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stop)
        with pytest.raises(Stopped):
            ask(config, [])


@pytest.mark.parametrize("place", ["embedding", "moving"])
def test_a_build_that_was_stopped_is_resumed_to_the_same_bytes(
    config, tmp_path, monkeypatch, place
):
    whole = config.replace(index=(str(tmp_path / "whole"),))
    ask(whole, [])
    stop_build(config, monkeypatch, place)
    assert names(tmp_path) == ["corpus.txt", "index.dcse_tf-partial", "whole"]
    # The texts are not read again, and what is embedded is not embedded again.
    monkeypatch.setattr(layout, "write_corpus_texts", stop)
    if place == "moving":
        monkeypatch.setattr(job, "embed", stop)
    assert len(ask(config, QUERIES)) == 3
    assert names(tmp_path) == ["corpus.txt", "index", "whole"]
    assert read_files(tmp_path / "index") == read_files(tmp_path / "whole")


def test_a_build_that_was_stopped_in_the_embedding_is_resumed_with_given_embeddings(
    config, tmp_path, monkeypatch
):
    rows = str(tmp_path / "rows.npy")
    embed.embed(EmbedOptions(model=config.model, input=config.corpus, output=rows))
    stop_build(config, monkeypatch, "embedding")
    monkeypatch.setattr(job, "embed", stop)
    (found,) = ask(config.replace(embeddings=rows, top=1), ["ok"])
    assert [(hit.text, hit.count) for hit in found] == [("ok", 3)]
    assert names(tmp_path / "index") == ["embeddings.npy", "made_from.json", "texts"]


def test_a_build_is_not_resumed_for_another_corpus(config, tmp_path, monkeypatch):
    stop_build(config, monkeypatch)
    with (tmp_path / "corpus.txt").open("a") as file:
        file.write("my refund\n")
    with pytest.raises(
        InputError, match=r"index\.dcse_tf-partial.*contents of `corpus`.*`overwrite`"
    ):
        ask(config, [])
    assert "my refund" in [hit.text for hit in ask(config.replace(overwrite=True), ["refund"])[0]]


def test_an_index_of_another_model_corpus_or_setting_is_refused(config, tmp_path):
    ask(config, [])
    before = read_files(tmp_path / "index")
    other = save_checkpoint(tmp_path / "other", build_backbone(seed=4))
    changes = [
        ({"model": str(other)}, r"contents of `model`: "),
        ({"pooling": "cls"}, r"`pooling`: cls \(was mean\)"),
        ({"max_sequence_length": 9}, r"`max_sequence_length`: 9 \(was 128\)"),
        ({"truncate_dim": 8}, r"contents of `model`: .*`truncate_dim`: 8 \(was none\)"),
        ({"index_type": "hnsw"}, r"`index_type`: hnsw \(was exact\)"),
    ]
    for change, message in changes:
        with pytest.raises(InputError, match=message):
            ask(config.replace(**change), [])
    (tmp_path / "corpus.txt").write_text("ok\n")
    with pytest.raises(InputError, match="contents of `corpus`"):
        ask(config, [])
    assert read_files(tmp_path / "index") == before
    (hits,) = ask(config.replace(model=str(other), overwrite=True), ["ok"])
    assert [hit.text for hit in hits] == ["ok"]


def test_another_type_of_numbers_may_ask(config):
    ask(config, [])
    (hits,) = ask(config.replace(compute_dtype="bfloat16"), ["the cup is blue"])
    assert hits[0].text == "the cup is blue"


def test_a_folder_that_is_no_index_is_never_replaced(config, tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "thesis.txt").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="exists and is not an index"):
            ask(config.replace(overwrite=overwrite), [])
    assert names(tmp_path / "index") == ["thesis.txt"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": ""}, r"`index`=.*index: no such index; give `corpus`"),
        ({"corpus": "nothing.txt"}, r"`corpus`=nothing\.txt: cannot be read"),
    ],
    ids=str,
)
def test_without_an_index_a_corpus_is_needed(config, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        ask(config.replace(**changes), [])
    assert names(tmp_path) == ["corpus.txt"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_users_own_files_and_folders_beside_the_index_stay(config, tmp_path, kind):
    ends = (".building", ".lock", ".partial", ".previous")
    for end in ends:
        path = tmp_path / f"index{end}"
        if kind == "folder":
            path.mkdir()
            path = path / "thesis"
        path.write_text("precious")
    ask(config, [])
    ask(config.replace(overwrite=True), [])
    assert names(tmp_path) == ["corpus.txt", "index", *(f"index{end}" for end in ends)]
    for end in ends:
        path = tmp_path / f"index{end}"
        assert (path / "thesis" if kind == "folder" else path).read_text() == "precious"


def test_two_builds_at_once_are_refused(config, tmp_path):
    with (
        lock_output(tmp_path / "index"),
        pytest.raises(LockedError, match=str(tmp_path / "index")),
    ):
        ask(config, [])


def test_faiss_is_looked_for_before_the_embedding(config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match="pip install faiss-cpu"):
        ask(config.replace(index_type="hnsw"), [])
    assert names(tmp_path) == ["corpus.txt"]


def test_an_approximate_index_answers_and_its_recall_is_said(config, monkeypatch):
    pytest.importorskip("faiss")
    exact = ask(config, QUERIES)
    said = []
    monkeypatch.setattr(job.logging, "info", lambda form, *v: said.append(form % v))
    for kind in ("hnsw", "ivf_int8", "binary"):
        found = config.replace(index=(config.index[0] + kind,), index_type=kind)
        assert ask(found, QUERIES) == exact
        assert f"{kind} finds 100.0% of the exact 10 nearest" in said
        assert ask(found.replace(index_type=None), QUERIES) == exact


def test_a_setting_of_another_type_of_index_is_refused(config, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(job, "build_index", lambda *_: pytest.fail("built first"))
        with pytest.raises(OptionError, match="`nprobe`=9: has no meaning with `index_type`=exact"):
            ask(config.replace(nprobe=9), [])
    ask(config, [])
    with pytest.raises(OptionError, match="`ef_search`=9: has no meaning with `index_type`=exact"):
        ask(config.replace(ef_search=9, corpus=""), [])
    # Of several indexes one may need it.
    kinds = ["exact", "ivf_int8"]
    config.replace(nprobe=9).check_kinds(kinds)
    with pytest.raises(OptionError, match=r"`ef_search`=9: .* with `index_type`=exact, ivf_int8"):
        config.replace(ef_search=9).check_kinds(kinds)


@pytest.fixture
def parts(config, tmp_path):
    """Settings of two indexes, of the first five lines of the corpus and of the others."""
    for number, lines in enumerate([LINES[:5], LINES[5:]]):
        path = tmp_path / f"lines-{number}.txt"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        ask(config.replace(corpus=str(path), index=(str(tmp_path / f"part-{number}"),)), [])
    return config.replace(corpus="", index=(str(tmp_path / "part-*"),))


def test_several_indexes_are_searched_as_one(config, parts, tmp_path, capsys, monkeypatch):
    answers = ask(parts, QUERIES)
    assert _texts(answers) == _texts(ask(config, QUERIES))
    folders = [str(tmp_path / f"part-{number}") for number in (0, 1)]
    assert ask(parts.replace(index=tuple(folders)), QUERIES) == answers
    parts = parts.replace(query="ok", top=1)
    printed = run_cli(parts, capsys, monkeypatch)
    assert printed == f"ok\n   1  1.0000  {folders[0]} line 2 (x3)  ok\n\n"
    (answer,) = json.loads(run_cli(parts.replace(output="-"), capsys, monkeypatch))["answers"]
    assert (answer["index"], answer["line"], answer["count"]) == (folders[0], 2, 3)


def test_each_of_several_indexes_must_be_of_the_model_and_there(config, parts, tmp_path):
    with pytest.raises(OptionError, match=r"`corpus`=.*builds one `index`, and 2 are given"):
        ask(parts.replace(corpus=config.corpus), [])
    # What a build in progress has left is found by the glob.
    (tmp_path / "part-2.dcse_tf-partial").mkdir()
    with pytest.raises(InputError, match="part-2: no such index"):
        ask(parts, [])
    (tmp_path / "part-2.dcse_tf-partial").rmdir()
    made_from = tmp_path / "part-1/made_from.json"
    made_from.write_text(made_from.read_text().replace('"contents of `model`": "', '"a": "'))
    with pytest.raises(
        InputError, match="part-1: was built with other settings or inputs: contents of `model`"
    ):
        ask(parts, [])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give `corpus`, or `index`"),
        ({"index": ("i",), "overwrite": True}, "`overwrite` .* needs `corpus`"),
        ({"index": ("i",), "hnsw_m": 64}, "`hnsw_m`=64: has no meaning without `corpus`"),
        ({"corpus": "c", "query": "a", "queries": "b"}, "either `query` or `queries`"),
        ({"corpus": "c", "query": ""}, "`query`: is blank"),
        ({"corpus": "c", "query": " \u3000"}, "`query`: is blank"),
        ({"corpus": "c", "top": 0}, "`top`=0: expected at least 1"),
        ({"corpus": "c", "rerank_top": 9}, "`rerank_top`=9: has no meaning without `reranker`"),
        (
            {"corpus": "c", "cosine_weight": 9.0},
            "`cosine_weight`=9.0: has no meaning without `reranker`",
        ),
        ({"corpus": "c", "reranker": "r", "rerank_top": 3}, "expected `top`=5 at least"),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(OptionError, match=message):
        SearchOptions(model="m", **settings)


class TypedBytes(io.BytesIO):
    def readline(self, *_):
        raise AssertionError("who has ended the input would have to end it again")


class Terminal(io.TextIOWrapper):
    """Standard input of some bytes; of a terminal the end is not asked for twice."""

    def __init__(self, content, typed):
        super().__init__((TypedBytes if typed else io.BytesIO)(content), encoding="utf-8")
        self._typed = typed

    def isatty(self):
        return self._typed


def run_cli(config, capsys, monkeypatch, content=b"", typed=False):
    monkeypatch.setattr(sys, "stdin", Terminal(content, typed))
    search(config)
    return capsys.readouterr().out


def test_printed_answers(config, capsys, monkeypatch):
    printed = run_cli(config.replace(query="ok", top=1), capsys, monkeypatch)
    assert printed == "ok\n   1  1.0000  line 2 (x3)  ok\n\n"


def test_queries_of_a_flag_a_file_a_pipe_and_a_terminal_are_answered_alike(
    config, tmp_path, capsys, monkeypatch
):
    json_lines = config.replace(output="-")
    lines = [run_cli(json_lines.replace(query=q), capsys, monkeypatch) for q in QUERIES]
    expected = "".join(lines)
    answers = [json.loads(line) for line in lines]
    assert [answer["query"] for answer in answers] == QUERIES
    assert set(answers[0]["answers"][0]) == {"rank", "cosine", "line", "count", "text"}
    assert answers[2]["answers"][0]["text"] == "the cup is blue"

    content = "\n\n".join(QUERIES) + "\n"
    (tmp_path / "queries.txt").write_text(content, encoding="utf-8")
    queries = (str(tmp_path / "queries.txt"),)
    assert run_cli(json_lines.replace(queries=queries), capsys, monkeypatch) == expected
    assert run_cli(json_lines, capsys, monkeypatch, content.encode()) == expected
    typed = run_cli(json_lines, capsys, monkeypatch, content.encode(), typed=True)
    assert typed.replace("query> ", "").strip() == expected.strip()
    assert typed.count("query> ") == 6  # five lines and the end

    output = str(tmp_path / "answers.jsonl")
    printed = run_cli(config.replace(queries=queries, output=output), capsys, monkeypatch)
    assert printed == f"the answers are in {output}\n"
    assert (tmp_path / "answers.jsonl").read_text(encoding="utf-8") == expected


DIALOGUE = "hello [EOT] where is my blue parcel [EOT]"


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    return save_reranker(tmp_path_factory.mktemp("reranker") / "run")


def test_what_embeddings_found_is_ordered_by_a_reranker(config, encoder, reranker):
    """The four nearest by the mean of the turns, and of these the three of highest score."""
    turns = ["hello", "where is my blue parcel"]
    mean = encoder.encode(turns).mean(axis=0, keepdims=True)
    cosines = scale(encoder.encode(DISTINCT)) @ scale(mean)[0]
    nearest = [DISTINCT[row] for row in np.argsort(-cosines)[:4]]
    scores = dict(zip(nearest, Reranker.load(reranker).score([turns], [nearest])[0].tolist()))
    expected = sorted(nearest, key=lambda text: -scores[text])[:3]
    assert expected != nearest[:3]
    (hits,) = ask(config.replace(reranker=str(reranker), rerank_top=4, top=3), [DIALOGUE])
    assert [hit.text for hit in hits] == expected
    assert [hit.rank for hit in hits] == [1, 2, 3]
    np.testing.assert_allclose([h.score for h in hits], [scores[t] for t in expected], atol=1e-5)
    by_text = dict(zip(DISTINCT, cosines))
    np.testing.assert_allclose([h.cosine for h in hits], [by_text[t] for t in expected], atol=1e-5)


def test_a_reranker_takes_the_tokens_that_are_asked_for(config, reranker, monkeypatch):
    taken = []
    split = reranker_module.split_by_length
    monkeypatch.setattr(
        reranker_module,
        "split_by_length",
        lambda lengths, tokens: taken.append(tokens) or split(lengths, tokens),
    )
    ask(config.replace(reranker=str(reranker), batch_tokens=40), [DIALOGUE])
    assert taken == [40]


def test_the_cosine_can_weigh_beside_the_rerankers_score(config, reranker):
    config = config.replace(reranker=str(reranker), rerank_top=5, top=5)
    (hits,) = ask(config, [DIALOGUE])

    def order(weight):
        return [hit.text for hit in sorted(hits, key=lambda x: -(x.score + weight * x.cosine))]

    orders = {weight: order(weight) for weight in np.geomspace(1e-3, 1e3, 60).tolist()}
    between = [w for w, found in orders.items() if found not in (order(0.0), order(1e6))]
    assert between
    for weight in (0.0, between[0], 1e6):
        (found,) = ask(config.replace(cosine_weight=weight), [DIALOGUE])
        assert [hit.text for hit in found] == order(weight)
        assert {hit.text: hit.score for hit in found} == {hit.text: hit.score for hit in hits}


def test_several_dialogues_at_once_have_the_answers_of_each(config, reranker):
    config = config.replace(reranker=str(reranker), rerank_top=5)
    together = ask(config, [DIALOGUE, *QUERIES])
    alone = [ask(config, [query])[0] for query in (DIALOGUE, *QUERIES)]
    assert [[h.text for h in hits] for hits in together] == [[h.text for h in x] for x in alone]


def test_turns_are_parted_by_their_mark():
    assert job.split_turns("a b [EOT]c[EOT] d") == ["a b", "c", "d"]
    assert job.split_turns("a [EOT] [EOT]") == ["a"]
    assert job.split_turns("a\tb") == ["a\tb"]
    assert job.split_turns("[EOT]") == ["[EOT]"]


def test_both_scores_are_shown(config, reranker, capsys, monkeypatch):
    config = config.replace(reranker=str(reranker), query=DIALOGUE, top=1)
    (hit,) = ask(config, [DIALOGUE])[0]
    printed = run_cli(config, capsys, monkeypatch).split("\n")
    assert printed[0] == DIALOGUE
    assert printed[1].split()[:3] == ["1", f"{hit.score:.4f}", f"{hit.cosine:.4f}"]
    line = run_cli(config.replace(output="-"), capsys, monkeypatch)
    assert json.loads(line)["answers"][0]["score"] == round(hit.score, 6)


def test_models_of_the_other_kind_are_refused(config, model, reranker, tmp_path):
    with pytest.raises(InputError, match=r"`reranker`=.* is a sentence encoder, not a re-ranker"):
        ask(config.replace(reranker=str(model)), QUERIES)
    with pytest.raises(InputError, match=r"`model`=.* is a re-ranker"):
        ask(config.replace(model=str(reranker)), QUERIES)
    assert names(tmp_path) == ["corpus.txt"]


def test_a_piped_query_that_is_not_utf_8_is_named(config, capsys, monkeypatch):
    with pytest.raises(InputError, match="standard input:2: not UTF-8"):
        run_cli(config, capsys, monkeypatch, b"ok\n\xd6\xd0\n")


def test_a_file_of_queries_that_is_not_utf_8_names_no_flag_of_other_jobs(
    config, tmp_path, capsys, monkeypatch
):
    (tmp_path / "queries.txt").write_bytes(b"ok\n\xd6\xd0\n")
    with pytest.raises(InputError, match=r"queries\.txt:2: not UTF-8$"):
        run_cli(config.replace(queries=(str(tmp_path / "queries.txt"),)), capsys, monkeypatch)


def test_nothing_is_built_for_queries_that_cannot_be_read(config, tmp_path, capsys, monkeypatch):
    with pytest.raises(InputError, match="`queries`=nothing"):
        run_cli(config.replace(queries=("nothing",)), capsys, monkeypatch)
    assert names(tmp_path) == ["corpus.txt"]
