"""Runs, judgments and texts as lists: what is read, what is left out and named, what an accident leaves."""

from __future__ import annotations

import gzip
import json
import logging
import pickle
import random
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict, load_from_disk

from st_listwise.data import counts, read_teacher_run, read_trec, runs, write_run
from st_listwise.data.tally import Tally
from st_listwise.data.texts import Corpus
from st_listwise.evaluation import GradedRerankingEvaluator

RUN = """\
q1 Q0 d2 1 9.5 bm25
q1 Q0 d1 2 7 bm25
q2 Q0 d3 1 3.25 bm25
q1 Q0 d3 3 7 bm25
q2 Q0 d1 2 1e-1 bm25
"""
QRELS = "q1 0 d1 2\nq1 0 d4 1\nq2 0 d3 1\nq2 0 d1 0\n"
CORPUS = {"d1": "one", "d2": "two", "d3": "three", "d4": "four"}
QUERIES = {"q1": "first", "q2": "second"}

Read = Callable[..., Dataset]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """read_trec of texts that are written to files first."""

    def read(
        run: str = RUN, qrels: str = QRELS, corpus: Any = CORPUS, queries: Any = QUERIES, **options: Any
    ) -> Dataset:
        paths = {"run": tmp_path / "a.run", "qrels": tmp_path / "qrels", "corpus": tmp_path / "docs"}
        texts = {"run": run, "qrels": qrels, "corpus": corpus}
        given = {"queries": queries}
        for name, text in texts.items():
            given[name] = text
            if isinstance(text, (str, bytes)):
                content = text if isinstance(text, bytes) else text.encode()
                if not paths[name].exists() or paths[name].read_bytes() != content:
                    paths[name].write_bytes(content)
                given[name] = paths[name]
        return read_trec(**given, cache_dir=tmp_path / "cache", **options)

    return read


def test_documents_come_by_score_with_their_grades_and_what_the_run_missed(read: Read) -> None:
    rows = read()
    assert rows[:] == {
        "query": ["first", "second"],
        "docs": [["two", "one", "three"], ["three", "one"]],  # d1 and d3 of q1 have one score: the file's order
        "labels": [[0.0, 2.0, 0.0], [1.0, 0.0]],
        "missed": [[1.0], []],
        "query_id": ["q1", "q2"],
        "doc_ids": [["d2", "d1", "d3"], ["d3", "d1"]],
    }
    assert counts(rows) == {"lists": 2, "documents": 5}


def test_depth_cuts_by_score_and_what_is_cut_is_missed(read: Read) -> None:
    run = "q1 Q0 d1 1 1 x\nq1 Q0 d2 2 3 x\nq1 Q0 d3 3 2 x\n"
    rows = read(run, "q1 0 d1 2\nq1 0 d3 1\n", depth=2)
    assert rows["doc_ids"] == [["d2", "d3"]]
    assert rows["labels"] == [[0.0, 1.0]]
    assert rows["missed"] == [[2.0]]


@pytest.mark.parametrize(
    "qrels",
    [
        QRELS.replace(" ", "\t"),
        "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td4\t1\nq2\td3\t1\n",
        "q1 d1 2\nq1 d4 1\nq2 d3 1\n",
        "query_id\tdoc_id\tgrade\traw\nq1\td1\t2\t-1\nq1\td4\t1\t4\nq2\td3\t1\t4\n",
        "Relevance Docno QID\n2 d1 q1\n1 d4 q1\n1 d3 q2\n",
    ],
    ids=["tabs", "header", "three columns", "a fourth column", "another order"],
)
def test_qrels_are_read_in_each_of_their_forms(read: Read, qrels: str) -> None:
    rows = read(qrels=qrels, strict=True)
    assert rows["labels"] == [[0.0, 2.0, 0.0], [1.0, 0.0]]
    assert rows["missed"] == [[1.0], []]


@pytest.mark.parametrize(
    "corpus",
    [
        "".join(json.dumps({"_id": id, "title": "", "text": text}) + "\n" for id, text in CORPUS.items()),
        "".join(json.dumps({"doc_id": id, "text": text, "url": None}) + "\n" for id, text in CORPUS.items()),
        "\ufeff" + "".join(f"{id}\t{text}\r\n" for id, text in CORPUS.items()),
        gzip.compress("".join(f"{id}\t{text}\n" for id, text in CORPUS.items()).encode()),
        Dataset.from_dict({"id": list(CORPUS), "title": list(CORPUS.values()), "text": [""] * len(CORPUS)}),
    ],
    ids=["BEIR", "doc_id", "tsv of Windows", "gzip", "data set"],
)
def test_documents_are_read_in_each_of_their_forms(read: Read, corpus: Any) -> None:
    assert read(corpus=corpus, strict=True)["docs"] == [["two", "one", "three"], ["three", "one"]]


def test_the_title_goes_before_the_text_and_numbers_are_identifiers(read: Read) -> None:
    corpus = '{"id": 1, "title": "Über", "text": "das  Meer"}\n{"id": 2, "text": "x"}\n'
    rows = read("7 Q0 1 1 2 x\n7 Q0 2 2 1 x\n", "7 0 1 1\n", corpus, {"7": "q"})
    assert rows["docs"] == [["Über das  Meer", "x"]]


def test_a_run_in_any_order_with_odd_spaces_gives_what_a_dictionary_would_collect(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "LINES", 40)  # several parts, of several blocks
    monkeypatch.setattr("st_listwise.data.files.BLOCK", 500)
    monkeypatch.setattr("st_listwise.data.collection.BYTES", 64)
    generator = random.Random(3)
    corpus = {f"d{number}": f"text {number}" for number in range(30)}
    scores = {f"q{query}": {doc: round(generator.random(), 2) for doc in corpus} for query in range(17)}
    lines = [(query, doc, score) for query, own in scores.items() for doc, score in own.items()]
    generator.shuffle(lines)
    spaces = [" ", "\t", "  "]
    text = "".join(
        f"{generator.choice(spaces).join([query, 'Q0', doc, '1', str(score), 'x'])}\n" for query, doc, score in lines
    )
    judged = {(query, f"d{generator.randrange(30)}") for query in scores}
    qrels = "".join(f"{query} 0 {doc} 1\n" for query, doc in judged)
    rows = read(text, qrels, corpus, dict.fromkeys(scores, "why"), depth=7, keep_all=True)
    position = {(query, doc): place for place, (query, doc, _) in enumerate(lines)}
    assert list(rows["query_id"]) == list(dict.fromkeys(query for query, _, _ in lines))
    for row in rows:
        query, own = row["query_id"], scores[row["query_id"]]
        best = sorted(own, key=lambda doc: (-own[doc], position[query, doc]))[:7]
        assert row["doc_ids"] == best
        assert row["docs"] == [corpus[doc] for doc in best]
        assert row["labels"] == [float((query, doc) in judged) for doc in best]
        assert len(row["missed"]) == 1 - sum(row["labels"])


FAULTS = [
    ({"run": RUN + "q2 Q0 d4\n"}, "run lines that cannot be read", r"a\.run, line 6: 3 columns, not the 6"),
    ({"run": "q1 Q0 d4 1 high x\n" + RUN}, "run lines that cannot be read", r"line 1: the score 'high' is no number"),
    ({"run": RUN + "\nq2 Q0 d4 3 nan x\n"}, "run lines that cannot be read", r"line 7: the score is nan"),
    (
        {"run": RUN + "q1 Q0 d9 4 1 x\n"},
        "run lines whose document is not in the corpus or has no text",
        r"a\.run, line 6: query 'q1', document 'd9'",
    ),
    ({"run": RUN + "q9 Q0 d1 1 1 x\n"}, "run lines whose query has no text", r"line 6: query 'q9', document 'd1'"),
    ({"run": RUN + "q1 Q0 d2 4 1 x\n"}, "run lines of a document that the list has already", r"line 6: query 'q1'"),
    ({"qrels": QRELS + "q1 0 d3\n"}, "qrels lines that cannot be read", r"qrels, line 5: 3 columns, not 4"),
    ({"qrels": QRELS + "q1 0 d3 good\n"}, "qrels lines that cannot be read", r"line 5: the grade 'good' is no number"),
    ({"qrels": QRELS + "q1 0 d1 1\n"}, "judgments of a known pair", r"line 5: query 'q1', document 'd1' again"),
    ({"qrels": QRELS + "q1 0 d9 0\n"}, "judged documents that are not in the corpus", r"line 5: 'd9' is not in"),
    (
        {"qrels": QRELS + "q3 0 d1 0\n"},
        "judged queries without a relevant document",
        r"line 5: all grades of query 'q3'",
    ),
    ({"corpus": {**CORPUS, "d5": " "}}, "corpus lines without text", r"corpus, row 5: 'd5'"),
    ({"queries": {**QUERIES, "q5": ""}}, "queries lines without text", r"queries, row 3: 'q5'"),
]


def test_several_processes_give_the_rows_counts_and_places_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runs, "LINES", 60)
    monkeypatch.setattr("st_listwise.data.files.BLOCK", 500)
    monkeypatch.setattr("st_listwise.data.collection.BYTES", 64)
    generator = random.Random(4)
    lines = [
        f"q{generator.randrange(25)} Q0 d{generator.randrange(33)} {place} {generator.random():.3f} x"
        for place in range(600)
    ]  # some documents stand twice in a list, some have no text, and so has a query
    run, qrels = tmp_path / "a.run", tmp_path / "qrels"
    run.write_text("\n".join([*lines[:400], "broken", *lines[400:]]))
    qrels.write_text("".join(f"q{query} 0 d{query} 1\n" for query in range(25)))
    corpus = {f"d{number}": f"text {number}" for number in range(31)}
    queries = {f"q{number}": f"query {number}" for number in range(24)}

    def read(folder: str, num_proc: int | None) -> tuple[Dataset, str]:
        caplog.clear()
        rows = read_trec(run, qrels, corpus, queries, depth=20, num_proc=num_proc, cache_dir=tmp_path / folder)
        assert {path.suffix for path in (tmp_path / folder).iterdir()} == {".arrow", ".json"}
        return rows, caplog.text

    (rows, text), (others, other_text) = read("one", None), read("three", 3)
    assert others[:] == rows[:]
    assert others.features == rows.features
    assert other_text == text
    assert len(counts(rows)) == 7  # lists, documents, lists dropped, and four kinds of faults
    assert counts(others) == counts(rows)
    (tmp_path / "b.run").write_text("\n".join(lines))
    messages = []
    for num_proc in (None, 3):
        with pytest.raises(ValueError, match="line") as caught:
            read_teacher_run(tmp_path / "b.run", corpus, queries, strict=True, num_proc=num_proc, cache_dir=tmp_path)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_corpus_that_is_sent_to_another_process_gives_the_same_texts(tmp_path: Path) -> None:
    own = Corpus({"a": "one", "b": "zwölf", "c": "three"}, tmp_path / "texts", Tally())
    sent = pickle.loads(pickle.dumps(own))
    assert sent.rows(pa.array(["c", "x", "b"])).tolist() == [2, -1, 1]
    assert sent.take(np.array([2, 1])).to_pylist() == ["three", "zwölf"]
    assert sent.lengths.tolist() == [3, 6, 5]


@pytest.mark.parametrize(
    ("parts", "kind", "place"), FAULTS, ids=[f"{kind} {n}" for n, (_, kind, _) in enumerate(FAULTS)]
)
def test_what_is_wrong_is_left_out_counted_and_named_and_an_error_in_strict_mode(
    read: Read, caplog: pytest.LogCaptureFixture, parts: dict[str, Any], kind: str, place: str
) -> None:
    with caplog.at_level(logging.WARNING, "st_listwise"):
        rows = read(**parts)
    assert rows["labels"] == [[0.0, 2.0, 0.0], [1.0, 0.0]]  # as without the fault
    assert counts(rows)[kind] == 1
    assert len(caplog.messages) == 1
    assert f"1 {kind} (first: " in caplog.messages[0]
    with pytest.raises(ValueError, match=place):
        read(**parts, strict=True)


CORPUS_LINES = "".join(f"{id}\t{text}\n" for id, text in CORPUS.items())


@pytest.mark.parametrize(
    ("line", "kind", "place"),
    [
        ("d1\tagain\n", "documents of a known id", r"docs, line 5: 'd1' was there before"),
        ('{"text": "x"}\n', "corpus lines that cannot be read", r"docs, line 5: no id under _id"),
        ('{"id": "x", \n', "corpus lines that cannot be read", r"docs, line 5: Expecting property name"),
        (
            "d5 a text\n",
            "corpus lines that cannot be read",
            r"line 5: neither a JSON object nor id<TAB>text: 'd5 a text'",
        ),
        (b"d5\t\xff\n", "lines that are not UTF-8", r"docs, line 5: .*can't decode byte 0xff"),
    ],
)
def test_a_line_of_the_corpus_that_is_wrong_is_named(read: Read, line: Any, kind: str, place: str) -> None:
    corpus = CORPUS_LINES.encode() + (line.encode() if isinstance(line, str) else line)
    rows = read(corpus=corpus)
    assert rows["docs"] == [["two", "one", "three"], ["three", "one"]]
    assert counts(rows)[kind] == 1
    with pytest.raises(ValueError, match=place):
        read(corpus=corpus, strict=True)


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ({"_id": "d5", "text": "bad \ud83d end"}, "in position 6: surrogates not allowed"),
        ({"_id": "d5\udc00", "text": "good"}, "in position 2: surrogates not allowed"),
    ],
)
@pytest.mark.parametrize("part", ["corpus", "queries"])
def test_half_a_surrogate_pair_is_named_with_its_line_in_place_of_a_unicode_error(
    read: Read, tmp_path: Path, part: str, line: Any, place: str
) -> None:
    whole = CORPUS if part == "corpus" else QUERIES
    lines = [{"_id": id, "text": text} for id, text in whole.items()]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in [*lines, line]))  # escaped, as JSON has it
    rows = read(**{part: path})
    assert rows["docs"] == [["two", "one", "three"], ["three", "one"]]
    assert counts(rows)[f"{part} lines that cannot be read"] == 1
    with pytest.raises(ValueError, match=rf"texts\.jsonl, line {len(lines) + 1}: .*{place}"):
        read(**{part: path}, strict=True)


def test_none_in_a_mapping_is_no_text_and_its_identifiers_may_be_numbers(read: Read) -> None:
    run, qrels = "7 Q0 1 1 2 x\n7 Q0 2 2 1 x\n7 Q0 3 3 0 x\n", "7 0 1 1\n"
    for corpus in ({1: "one", 2: "two", 3: None}, [(1, "one"), (2, "two"), (3, None)]):
        rows = read(run, qrels, corpus, {7: "q"})
        assert rows["docs"] == [["one", "two"]]
        assert rows["doc_ids"] == [["1", "2"]]
        assert counts(rows)["corpus lines without text"] == 1
        with pytest.raises(ValueError, match="corpus, row 3: '3'"):
            read(run, qrels, corpus, {7: "q"}, strict=True)


@pytest.mark.parametrize("record", [5, ["d5", "text"], ("d5", "text", "more"), ("d5", {"text": "five"})])
def test_a_record_that_is_neither_a_dict_nor_a_pair_is_named(read: Read, record: Any) -> None:
    corpus = [*CORPUS.items(), record]
    rows = read(corpus=corpus)
    assert rows["docs"] == [["two", "one", "three"], ["three", "one"]]
    assert counts(rows)["corpus lines that cannot be read"] == 1
    message = "row 5: (neither a dict with an id and a text nor a pair|the text of 'd5' is no string)"
    with pytest.raises(ValueError, match=message):
        read(corpus=corpus, strict=True)
    with pytest.raises(ValueError, match=r"corpus holds no documents with text\. 1 corpus lines that .* \(first: "):
        read(corpus=[record])


def test_a_generator_is_refused_with_what_to_give_in_place_of_a_pickling_error(read: Read) -> None:
    with pytest.raises(ValueError, match=r"The corpus and the queries can be read only once.* a mapping or a list"):
        read(corpus=(pair for pair in CORPUS.items()), queries=iter(QUERIES.items()))


@pytest.mark.parametrize("pack", [str.encode, lambda text: gzip.compress(text.encode())], ids=["plain", "gzip"])
def test_lines_are_counted_through_blocks_and_blank_lines(
    read: Read, monkeypatch: pytest.MonkeyPatch, pack: Callable[[str], bytes]
) -> None:
    monkeypatch.setattr("st_listwise.data.files.BLOCK", 64)
    lines = [f"q1 Q0 d{number} {number} {-number} x" for number in range(1, 120)]
    lines[39] = ""
    lines[76] = "q1 Q0 d77 77 x"
    with pytest.raises(ValueError, match=r"a\.run, line 77: 5 columns"):
        read(pack("\n".join(lines)), "q1 0 d1 1\n", {f"d{number}": "x" for number in range(1, 120)}, strict=True)
    lines[76] = "q1 Q0 gone 77 -77 x"
    with pytest.raises(ValueError, match=r"a\.run, line 77: query 'q1', document 'gone'"):
        read(pack("\n".join(lines)), "q1 0 d1 1\n", {f"d{number}": "x" for number in range(1, 120)}, strict=True)


def test_ranks_in_place_of_grades_or_scores_are_noticed(read: Read, caplog: pytest.LogCaptureFixture) -> None:
    ranks = "q1 0 d1 2\nq1 0 d4 1\nq1 0 d2 3\nq2 0 d3 1\n"
    assert counts(read(qrels=ranks))["queries whose grades look like ranks"] == 1
    assert "query 'q1' has 1 to 3, each once; grades are larger for better documents" in caplog.text
    with pytest.raises(ValueError, match=r"qrels, line 1: .*a ranking is read with read_teacher_run"):
        read(qrels=ranks, strict=True)
    run = "".join(f"q1 Q0 d{n} {n} {n} x\n" for n in (1, 2, 3))
    assert counts(read(run))["lists whose scores rise with the rank"] == 1
    with pytest.raises(ValueError, match=r"a\.run: query 'q1'; larger scores are better"):
        read(run, strict=True)


def test_of_a_gzip_file_that_breaks_off_whole_lines_are_kept(read: Read, caplog: pytest.LogCaptureFixture) -> None:
    generator = np.random.default_rng(0)
    lines = "".join(f"q1 Q0 d{doc} 1 {generator.random()} x\n" for doc in range(5000))
    corpus = {f"d{doc}": "x" for doc in range(5000)}
    packed = gzip.compress(lines.encode())
    rows = read(packed[: len(packed) // 2], "q1 0 d1 1\n", corpus)
    found = counts(rows)
    assert found["files cut short"] == 1
    assert 2000 < found["documents"] < 3000
    assert "run lines that cannot be read" not in found  # the line in which the file ends is none
    assert sorted(rows[0]["doc_ids"]) == sorted(f"d{doc}" for doc in range(found["documents"]))
    assert "a.run breaks off in line" in caplog.text
    with pytest.raises(ValueError, match=r"a\.run breaks off in line \d+ .*get it again"):
        read(packed[: len(packed) // 2], "q1 0 d1 1\n", corpus, strict=True)


@pytest.mark.parametrize("kept", [3, 12, -1])
def test_a_gzip_file_that_breaks_off_anywhere_is_told_from_a_short_one(read: Read, kept: int) -> None:
    packed = gzip.compress(QRELS.encode())
    with pytest.raises(ValueError, match="qrels breaks off in line"):
        read(qrels=packed[:kept], strict=True)
    with pytest.raises(ValueError, match=r"qrels holds no judgments\. 1 files cut short"):
        read(qrels=packed[:12])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"corpus": ""}, "docs holds no documents with text"),
        ({"corpus": {}}, "corpus holds no documents with text"),
        ({"queries": {}}, "queries holds no queries with text"),
        ({"qrels": ""}, "qrels holds no judgments"),
        ({"qrels": "q1 0 d1 0\nq2 0 d3 0\n"}, "qrels has no grade above 0: there is nothing to learn or measure"),
        ({"run": ""}, r"a\.run: no list is left\. 0 lists"),
        ({"run": "q1 Q0 d2 1 1 x\n"}, r"no list is left\. 0 lists, 0 documents, 1 lists of one label dropped"),
        ({"depth": 0}, "depth=0 must be a whole number of at least 1"),
        ({"depth": "100"}, "depth='100' must be a whole number of at least 1"),
        ({"num_proc": 0}, "num_proc=0 must be a whole number of at least 1"),
        ({"run": {"q1": {"d1": 1.0}}}, "^run is dict: give the path of a file. Only corpus and queries can be"),
        ({"run": iter(["q1 Q0 d1 1 1 x"])}, "^run is .*iterator: give the path of a file"),
        ({"qrels": {"q1": {"d1": 1}}}, "^qrels is dict: give the path of a file"),
        ({"corpus": DatasetDict(corpus=Dataset.from_dict({}))}, "^corpus is DatasetDict: give one .* of 'corpus'"),
        ({"queries": None}, "There is no queries: give a file, or an ir_dataset that has it"),
        ({"queries": "gone.jsonl"}, r"gone\.jsonl is not a file"),
    ],
)
def test_what_gives_no_list_at_all_is_an_error(read: Read, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**parts)


@pytest.mark.parametrize("num_proc", [None, 2])
def test_an_interrupted_conversion_leaves_nothing_that_looks_complete(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_proc: int | None
) -> None:
    whole = runs.RunSpool.part

    def interrupted(self: runs.RunSpool, low: int, high: int) -> Any:
        if low:
            raise KeyboardInterrupt
        return whole(self, low, high)

    monkeypatch.setattr(runs, "LINES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(runs.RunSpool, "part", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read(num_proc=num_proc)
    assert list((tmp_path / "cache").iterdir()) == []
    assert len(read()) == 2


def test_a_conversion_is_done_again_only_when_the_input_or_an_option_changes(
    read: Read, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read()
    with caplog.at_level(logging.INFO, "st_listwise"):
        assert counts(read()) == {"lists": 2, "documents": 5}
    assert "2 lists, 5 documents" in caplog.text  # said each time
    results = sorted((tmp_path / "cache").glob("*.arrow"))
    assert len(results) == 1
    assert len(read(depth=2)[0]["docs"]) == 2
    assert read(qrels="q1 0 d2 1\n")["labels"] == [[1.0, 0.0, 0.0]]
    assert len(list((tmp_path / "cache").glob("*.arrow"))) == 3


def test_counts_stay_with_the_data_set_and_are_missing_elsewhere(read: Read, tmp_path: Path) -> None:
    rows = read(RUN + "q1 Q0 d9 4 1 x\n")
    rows.select([0]).save_to_disk(tmp_path / "saved")
    assert counts(load_from_disk(tmp_path / "saved")) == counts(rows)
    with pytest.raises(ValueError, match="no counts"):
        counts(Dataset.from_dict({"query": ["a"]}))


# Teachers


def teacher(tmp_path: Path, run: str, **options: Any) -> Dataset:
    (tmp_path / "llm.run").write_text(run)
    return read_teacher_run(tmp_path / "llm.run", CORPUS, QUERIES, cache_dir=tmp_path, **options)


def test_a_teachers_ranks_become_labels_without_gaps(tmp_path: Path) -> None:
    run = "q1 Q0 d3 2 8 llm\nq1 Q0 d9 1 9 llm\nq1 Q0 d1 4 6 llm\nq1 Q0 d3 5 5 llm\nq1 Q0 d2 3 7 llm\n"
    rows = teacher(tmp_path, run)
    assert rows[:] == {
        "query": ["first"],
        "docs": [["three", "two", "one"]],  # d9 is not in the corpus, d3 counts where it is better
        "labels": [[2.0, 1.0, 0.0]],
        "query_id": ["q1"],
        "doc_ids": [["d3", "d2", "d1"]],
    }
    found = counts(rows)
    assert found["run lines whose document is not in the corpus or has no text"] == 1
    assert found["run lines of a document that the list has already"] == 1
    assert teacher(tmp_path, run, depth=2)["labels"] == [[1.0, 0.0]]


def test_equal_ranks_share_a_label(tmp_path: Path) -> None:
    run = "q1 Q0 d1 1 0 x\nq1 Q0 d2 2 0 x\nq1 Q0 d3 2 0 x\nq1 Q0 d4 4 0 x\n"
    assert teacher(tmp_path, run)["labels"] == [[3.0, 1.0, 1.0, 0.0]]


def test_a_teachers_scores_are_labels_as_they_are(tmp_path: Path) -> None:
    rows = teacher(tmp_path, "q1 Q0 d1 1 -2.5 x\nq1 Q0 d2 2 -0.5 x\n", labels="scores")
    assert rows["doc_ids"] == [["d2", "d1"]]
    assert rows["labels"] == [[-0.5, -2.5]]
    with pytest.raises(ValueError, match='expected "ranks" or "scores"'):
        teacher(tmp_path, RUN, labels="grades")


def test_lists_that_teach_nothing_are_kept_where_they_are_to_be_ranked(tmp_path: Path) -> None:
    """A query with one document has no label above another, but it has a place in a reranked run."""
    run = "q1 Q0 d1 1 2 x\nq1 Q0 d2 1 3 x\nq2 Q0 d3 1 1 x\n"  # the rank says nothing
    with pytest.raises(ValueError, match="2 lists of one label dropped"):
        teacher(tmp_path, run)
    assert teacher(tmp_path, run, keep_all=True)["labels"] == [[0.0, 0.0], [0.0]]
    rows = teacher(tmp_path, run, labels="scores", keep_all=True)
    assert rows["doc_ids"] == [["d2", "d1"], ["d3"]]
    assert teacher(tmp_path, run, labels="scores", keep_all=True, depth=1)["doc_ids"] == [["d2"], ["d3"]]
    assert teacher(tmp_path, run, labels="scores")["doc_ids"] == [["d2", "d1"]]


# Writing


def test_a_reranked_run_is_read_by_ir_measures_in_the_order_of_its_scores(read: Read, tmp_path: Path) -> None:
    import ir_measures

    rows = read()
    write_run(tmp_path / "new.run", rows, [[0.5, 2.0, -1.0], np.float32([1, 3])], tag="ours")
    assert (tmp_path / "new.run").read_text() == (
        "q1 Q0 d1 1 2 ours\nq1 Q0 d2 2 0.5 ours\nq1 Q0 d3 3 -1 ours\nq2 Q0 d1 1 3 ours\nq2 Q0 d3 2 1 ours\n"
    )
    qrels = list(ir_measures.read_trec_qrels(QRELS))
    run = ir_measures.read_trec_run(str(tmp_path / "new.run"))
    assert ir_measures.calc_aggregate([ir_measures.RR], qrels, run) == {ir_measures.RR: 0.75}
    with pytest.raises(ValueError, match="Query 'q1' has 3 documents, and needs as many finite scores"):
        write_run(tmp_path / "bad.run", rows, [[0.5, 2.0], [1.0, 3.0]])
    assert not (tmp_path / "bad.run").exists()


def test_a_run_is_written_into_a_folder_that_is_not_there_yet(read: Read, tmp_path: Path) -> None:
    """A teacher scored all pairs before this ended in FileNotFoundError."""
    write_run(tmp_path / "new" / "one" / "a.run", read().select([1]), [[2.0, 1.0]])
    assert (tmp_path / "new" / "one" / "a.run").read_text() == ("q2 Q0 d3 1 2 st-listwise\nq2 Q0 d1 2 1 st-listwise\n")


LISTED = {"query_id": "q1", "doc_ids": ["d1", "d2"]}


@pytest.mark.parametrize(
    ("row", "tag", "message"),
    [
        (LISTED, "my model", "tag 'my model' has spaces"),
        (LISTED, "", "tag '' is empty"),
        (LISTED, "one\n", r"tag 'one\\n' has spaces"),
        ({**LISTED, "query_id": "q 1"}, "x", "query_id 'q 1' has spaces"),
        ({**LISTED, "doc_ids": ["d1", "d\u00a02"]}, "x", r"document of query 'q1' 'd\\xa02' has spaces"),
        ({**LISTED, "doc_ids": ["", "d2"]}, "x", "document of query 'q1' '' is empty"),
    ],
)
def test_a_run_with_seven_columns_or_five_is_not_written(
    tmp_path: Path, row: dict[str, Any], tag: str, message: str
) -> None:
    (tmp_path / "a.run").write_text("as it was")
    with pytest.raises(ValueError, match=message):
        write_run(tmp_path / "a.run", [LISTED, row], [[1.0, 2.0]] * 2, tag=tag)
    assert [path.name for path in tmp_path.iterdir()] == ["a.run"]
    assert (tmp_path / "a.run").read_text() == "as it was"


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([[1.0, 2.0]], "There are 2 rows, but 1 lists of scores"),
        ([], "There are 2 rows, but 0 lists of scores"),
        (([1.0, 2.0] for _ in range(5)), "There are 2 rows, but 5 lists of scores"),
        ([[1.0, 2.0], [1.0]], "Query 'q1' has 2 documents, and needs as many finite scores"),
        ([[1.0, 2.0], [1.0, float("nan")]], "needs as many finite scores"),
        ([1.0, 2.0], "needs as many finite scores; got 1.0"),
        ([[{"corpus_id": 0, "score": 1.0}] * 2] * 2, "needs as many finite scores; got .*corpus_id"),
    ],
)
def test_after_an_error_no_temporary_file_is_left(tmp_path: Path, scores: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_run(tmp_path / "a.run", [LISTED, LISTED], scores)
    assert list(tmp_path.iterdir()) == []


def test_rows_cut_to_what_trains_were_a_bare_key_error(read: Read, tmp_path: Path) -> None:
    rows = read().select_columns(["query", "docs", "labels"])
    with pytest.raises(ValueError, match=r"no query_id, doc_ids: give those of read_trec .* before select_columns"):
        write_run(tmp_path / "a.run", rows, [[0.5, 2.0, -1.0], [1.0, 3.0]])


# Collections


def test_cranfield_is_measured_as_its_files_are_by_ir_measures(real_data: Path, tmp_path: Path) -> None:
    import ir_measures

    folder = real_data / "cranfield"
    run, qrels = folder / "bm25_top50_no_neg1.run", folder / "qrels_no_neg1.tsv"
    rows = read_trec(run, qrels, folder / "docs.jsonl", folder / "queries.jsonl", keep_all=True, cache_dir=tmp_path)
    assert len(rows) == 225
    assert counts(rows)["documents"] == 225 * 50
    measures = ["nDCG@10", "nDCG(dcg='exp-log2')@10", "R@50"]
    evaluator = GradedRerankingEvaluator(rows, measures)
    values = evaluator.measure([-np.arange(len(row["docs"])) for row in evaluator.rows])
    found = [float(np.mean(values[measure])) for measure in measures]
    lines = [line.split("\t") for line in qrels.read_text().splitlines()[1:]]
    judged = [ir_measures.Qrel(line[0], line[1], int(line[2])) for line in lines]
    parsed = [ir_measures.parse_measure(measure) for measure in measures]
    expected = ir_measures.calc_aggregate(parsed, judged, list(ir_measures.read_trec_run(str(run))))
    assert found == pytest.approx([expected[measure] for measure in parsed], abs=1e-6)
    assert found[1] == pytest.approx(0.397, abs=5e-4)  # as the description of the data has it


Doc = namedtuple("Doc", "doc_id text")
Query = namedtuple("Query", "query_id text")
Doc.default_text = Query.default_text = lambda self: self.text  # type: ignore[attr-defined]
Judged = namedtuple("Judged", "query_id doc_id relevance iteration")
Scored = namedtuple("Scored", "query_id doc_id score")


def collection(**without: Any) -> SimpleNamespace:
    """What ir_datasets.load returns, in small."""
    parts = {
        "docs_iter": lambda: iter([Doc(*item) for item in CORPUS.items()]),
        "queries_iter": lambda: iter([Query(*item) for item in QUERIES.items()]),
        "qrels_iter": lambda: iter([Judged("q1", "d1", 2, "0"), Judged("q2", "d3", 1, "0")]),
        "scoreddocs_iter": lambda: iter([Scored("q1", "d1", 1.0), Scored("q1", "d2", 5.0), Scored("q2", "d1", 3.0)]),
    }
    return SimpleNamespace(**{name: part for name, part in parts.items() if name not in without})


def test_ir_datasets_gives_what_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"tiny": collection(), "tiny/train": collection(scoreddocs_iter=None)}
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=known.__getitem__))
    rows = read_trec(ir_dataset="tiny", cache_dir=tmp_path, strict=True)
    assert rows["docs"] == [["two", "one"]]
    assert rows["labels"] == [[0.0, 2.0]]
    (tmp_path / "a.run").write_text(RUN)
    assert len(read_trec(tmp_path / "a.run", ir_dataset="tiny/train", cache_dir=tmp_path)) == 2
    with pytest.raises(ValueError, match="tiny/train has no scoreddocs in ir-datasets: give a file as run"):
        read_trec(ir_dataset="tiny/train", cache_dir=tmp_path)
    with pytest.raises(ValueError, match="ir_dataset='huge' is not known to ir-datasets"):
        read_trec(ir_dataset="huge", cache_dir=tmp_path)
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(ImportError, match="pip install ir_datasets"):
        read_trec(ir_dataset="other", cache_dir=tmp_path)
