"""Readers: what they give, against files written by hand, and the faults that they name."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, Features, Value
from hypothesis import given
from hypothesis import strategies as st

from st_listwise.data import counts, group_by_query, read_letor

FILE = """\
# a comment of its own
2 qid:10 1:0.5 3:-1.25 # docid = GX001 inc = 1
0 qid:10 2:4
1 qid:7 1:1 2:2 3:3

1 qid:10 3:9
"""


def test_a_letor_file_becomes_lists(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text(FILE)
    rows = read_letor(tmp_path / "rows.txt")
    assert rows["query"] == ["10", "7"]  # in the order in which they are met; lines of one qid are one list
    assert rows["labels"] == [[2.0, 0.0, 1.0], [1.0]]
    assert rows["docs"] == [[[0.5, 0.0, -1.25], [0.0, 4.0, 0.0], [0.0, 0.0, 9.0]], [[1.0, 2.0, 3.0]]]
    assert counts(rows) == {"lists": 2, "documents": 4}
    wider = read_letor(tmp_path / "rows.txt", num_features=5)
    assert wider[1]["docs"] == [[1.0, 2.0, 3.0, 0.0, 0.0]]


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "rows.txt.gz", "wt") as file:
        file.write(FILE)
    assert read_letor(tmp_path / "rows.txt.gz")["query"] == ["10", "7"]


def test_real_files_have_the_documents_that_their_description_counts(real_data: Path) -> None:
    counts = {
        "ltr_mslr5k/train.txt": (43, 5000, 136),
        "ltr_lightgbm/train.txt": (201, 3005, 300),
        "ltr_mq2008/fold1.vali.txt": (157, 2707, 46),
        "ltr_ohsumed/test.txt": (22, 3383, 45),
    }
    for name, (queries, documents, width) in counts.items():
        rows = read_letor(real_data / name)
        assert len(rows) == queries
        assert sum(map(len, rows["labels"])) == documents
        assert np.asarray(rows[0]["docs"]).shape[1] == width


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 qid:1 1:0.5\n2 1:0.3\n", r"bad\.txt, line 2: there is no qid"),
        ("2 1:0.3\n", r"line 1: there is no qid"),
        ("1 qid:1 1:0.5\n\n# note\nx qid:1 2:3\n", r"line 4: could not convert.*The line begins 'x qid:1 2:3'"),
        ("1 qid:1 1:a\n", "line 1: could not convert"),
        ("1 qid:1 1:1\n1 qid:1 1:nan\n", "line 2: a label or feature is NaN or infinite"),
        ("inf qid:1 1:1\n", "line 1: a label or feature is NaN or infinite"),
        ("1 qid:1 0:3\n", "line 1: Invalid index 0"),
        ("1 qid:1 1:1\n1 qid:1 4:1\n", "line 2: n_features was set to 3, but input file contains 4"),
        ("", "holds no rows"),
    ],
)
def test_a_fault_in_a_letor_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_letor(tmp_path / "bad.txt", num_features=3)


def test_a_file_that_is_not_there_or_cut_short_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gone\.txt is not a file"):
        read_letor(tmp_path / "gone.txt")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(FILE.encode() * 50)[:60])
    with pytest.raises(ValueError, match=r"cut\.txt\.gz cannot be read"):
        read_letor(tmp_path / "cut.txt.gz")


# Flat rows

ROWS = st.lists(
    st.tuples(st.sampled_from([*"abcd", None]), st.sampled_from(["x", "y", None]), st.sampled_from([0, 1, 2, None])),
    max_size=30,
)


@given(rows=ROWS, keep_all=st.booleans())
def test_flat_rows_become_lists_as_a_dictionary_would_collect_them(rows: list[Any], keep_all: bool) -> None:
    columns = {name: [row[place] for row in rows] for place, name in enumerate(("query", "doc", "label"))}
    features = Features({"query": Value("string"), "doc": Value("string"), "label": Value("int64")})
    grouped = group_by_query(Dataset.from_dict(columns, features=features), keep_all=keep_all)
    expected: dict[str, list[tuple[str, float]]] = {}
    for query, doc, label in rows:
        if None not in (query, doc, label):
            expected.setdefault(query, []).append((doc, float(label)))
    kept = {q: pairs for q, pairs in expected.items() if keep_all or len({label for _, label in pairs}) > 1}
    assert list(grouped["query"]) == list(kept)
    assert list(grouped["docs"]) == [[doc for doc, _ in pairs] for pairs in kept.values()]
    assert list(grouped["labels"]) == [[label for _, label in pairs] for pairs in kept.values()]


def test_selected_rows_alone_are_grouped_and_columns_may_have_other_names() -> None:
    rows = Dataset.from_dict({"qid": [7, 7, 7, 8], "text": ["a", "b", "c", "d"], "grade": ["1", "0", "2", "0"]})
    grouped = group_by_query(rows.select([2, 1]), "qid", "text", "grade")
    assert grouped[:] == {"query": [7], "docs": [["c", "b"]], "labels": [[2.0, 0.0]]}


def test_rows_that_are_not_complete_are_counted_and_an_error_in_strict_mode() -> None:
    rows = Dataset.from_dict({"query": ["a", "a", None, "b"], "doc": ["x", "y", "z", "v"], "label": [1, 0, 1, 1]})
    expected = {"rows that are not complete": 1, "lists": 1, "documents": 2, "lists of one label dropped": 1}
    assert counts(group_by_query(rows)) == expected
    with pytest.raises(ValueError, match="row 2: the query, document or label is None"):
        group_by_query(rows, strict=True)


RANKS = {"query": ["a", "b", "a", "a", "b", "b", "b"], "doc": [*"uvwxyzw"], "label": [2, 3, 1, 3, 1, 4, 2]}


def test_ranks_given_as_labels_are_noticed_and_read_as_ranks_on_request() -> None:
    rows = Dataset.from_dict(RANKS)
    assert counts(group_by_query(rows))["lists whose labels look like ranks"] == 2
    with pytest.raises(
        ValueError, match="query 'a' has labels 1 to 3, each once; larger is better, or give ranks=True"
    ):
        group_by_query(rows, strict=True)
    grouped = group_by_query(rows, ranks=True, strict=True)
    assert grouped["labels"] == [[1.0, 2.0, 0.0], [1.0, 3.0, 0.0, 2.0]]
    graded = Dataset.from_dict({**RANKS, "label": [2, 3, 1, 0, 1, 4, 2]})
    half = counts(group_by_query(graded))  # one list of two: graded labels may come so by chance
    assert half == {"lists": 2, "documents": 7}


def test_rows_that_cannot_be_grouped_are_refused() -> None:
    rows = Dataset.from_dict({"query": ["a"], "doc": ["b"], "label": ["much"]})
    with pytest.raises(ValueError, match="no column passage; the rows have query, doc, label"):
        group_by_query(rows, doc="passage")
    with pytest.raises(ValueError, match="label does not hold numbers"):
        group_by_query(rows)
