"""Readers: what they give, against files written by hand, and the faults that they name."""

from __future__ import annotations

import bz2
import gzip
import math
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict, Features, List, Value
from hypothesis import given
from hypothesis import strategies as st

from st_listwise.data import (
    EpochSampler,
    counts,
    files,
    from_hard_negatives,
    group_by_query,
    grouping,
    read_letor,
)

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
    assert counts(rows) == {"lists": 2, "documents": 4, "lists in several places": 1}
    wider = read_letor(tmp_path / "rows.txt", num_features=5)
    assert wider[1]["docs"] == [[1.0, 2.0, 3.0, 0.0, 0.0]]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_a_compressed_file_is_read_under_any_name(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "rows").write_bytes(pack(FILE.encode()))
    assert read_letor(tmp_path / "rows")["query"] == ["10", "7"]


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


UNREAD, UNFINITE = "lines that cannot be read", "lines with a value that is not finite"
GOOD = "2 qid:1 1:1\n0 qid:1 2:1\n"


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("2 1:0.3", "lines without qid", r"there is no qid. The line begins '2 1:0.3'"),
        ("x qid:1 2:3", UNREAD, "could not convert.*The line begins 'x qid:1 2:3'"),
        ("1 qid:1 1:a", UNREAD, "could not convert"),
        ("1 qid:one 1:1", UNREAD, "invalid literal for int"),
        ("1 qid:99999999999999999999 1:1", UNREAD, ".*too large"),
        ("1 qid:1 99999999999:1", UNREAD, ".*too large"),
        ("1 qid:1 0:3", UNREAD, "Invalid index 0"),
        ("1 qid:1 2:1 1:3", UNREAD, ".*should be sorted and unique"),
        ("1 qid:1 1:1 2", UNREAD, "need more than 1 value"),
        ("1 qid:1 1:nan", UNFINITE, "a label or feature of query 1 is NaN or infinite"),
        ("1 qid:1 1:1e39 # no float32", UNFINITE, "a label or feature of query 1"),
        ("inf qid:1 1:1", UNFINITE, "a label or feature of query 1"),
        ("1 qid:1 900000000:nan", UNFINITE, "a label or feature of query 1"),
    ],
)
def test_a_line_of_a_letor_file_that_is_wrong_is_left_out_counted_and_named_and_an_error_in_strict_mode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str, kind: str, message: str
) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(f"# note\n\n{GOOD}{line}\n1 qid:1 2:2\n{line}\n")
    rows = read_letor(path)
    assert rows[:] == {"query": ["1"], "docs": [[[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]], "labels": [[2.0, 0.0, 1.0]]}
    assert counts(rows) == {"lists": 1, "documents": 3, kind: 2}
    assert re.search(rf"2 {kind} \(first: .*bad\.txt, line 5: {message}", caplog.text)
    with pytest.raises(ValueError, match=rf"bad\.txt, line 5: {message}"):
        read_letor(path, strict=True)


@given(
    lines=st.lists(
        st.sampled_from(["1 qid:1 2:1", "0 qid:1", "1 2:1", "x", "", "# note", "1 qid:1 1:inf"]), max_size=12
    )
)
def test_any_mix_of_lines_is_read_as_each_of_them_alone(lines: list[str]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mixed.txt"
        path.write_text("1 qid:1 1:1\n" + "\n".join(lines))
        rows = read_letor(path, 2)
    vectors = {"1 qid:1 2:1": (1.0, [0.0, 1.0]), "0 qid:1": (0.0, [0.0, 0.0])}
    kept = [(1.0, [1.0, 0.0]), *(vectors[line] for line in lines if line in vectors)]
    assert list(zip(rows[0]["labels"], rows[0]["docs"])) == kept
    faults = Counter(
        {"1 2:1": "lines without qid", "x": UNREAD, "1 qid:1 1:inf": UNFINITE}.get(line, "") for line in lines
    )
    faults.pop("", None)
    assert counts(rows) == {"lists": 1, "documents": len(kept), **faults}


def test_lines_of_a_letor_file_are_counted_through_blocks_and_features_of_each_are_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "BLOCK", 30)
    path = tmp_path / "rows.txt"
    path.write_text("".join(f"{n % 3} qid:{n // 4} {n % 5 + 1}:{n}\n" for n in range(40)) + "broken\n")
    rows = read_letor(path)
    assert np.concatenate([np.asarray(docs) for docs in rows["docs"]]).tolist() == [
        [float(n) if place == n % 5 else 0.0 for place in range(5)] for n in range(40)
    ]
    assert rows["query"] == [str(n) for n in range(10)]
    assert "line 41: could not convert" in caplog.text


def test_a_qid_that_comes_again_is_one_list_and_named(tmp_path: Path) -> None:
    """Files put together may use one qid for two queries, and nothing else tells."""
    path = tmp_path / "rows.txt"
    path.write_text(FILE)
    with pytest.raises(ValueError, match=r"rows\.txt, line 6: query 10 stood before, with others in between"):
        read_letor(path, strict=True)
    path.write_text(FILE.replace("1 qid:7 1:1 2:2 3:3\n", ""))
    assert read_letor(path, strict=True)["labels"] == [[2.0, 0.0, 1.0]]


def test_a_feature_beyond_the_width_is_an_error_in_either_mode(tmp_path: Path) -> None:
    (tmp_path / "wide.txt").write_text("# note\n1 qid:1 1:1\n1 qid:1\n0 qid:1 2:1 4:1\n")
    for strict in (False, True):
        with pytest.raises(ValueError, match=r"wide\.txt, line 4: feature 4 is beyond num_features=3"):
            read_letor(tmp_path / "wide.txt", 3, strict=strict)
    for width in (0, "46"):
        with pytest.raises(ValueError, match=f"num_features={width!r} must be a whole number of at least 1"):
            read_letor(tmp_path / "wide.txt", width)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [None, ["fold1.txt", "fold2.txt"]], ids=type)
def test_what_is_no_path_of_one_file_is_named(path: Any) -> None:
    with pytest.raises(ValueError, match=f"is {type(path).__name__}, expected the path of one file"):
        read_letor(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"0 lists, 0 documents\."),
        (b"# note\n", r"0 lists, 0 documents\."),
        (gzip.compress(b""), r"0 lists, 0 documents\."),
        (bz2.compress(b""), r"0 lists, 0 documents\."),
        (b"1 1:1\n0 1:2", r"2 lines without qid \(first: .*none.txt, line 1: there is no qid"),
        (gzip.compress(FILE.encode() * 50)[:60], r"1 files cut short \(first: .*none.txt breaks off in line 1"),
    ],
    ids=["empty", "comment", "gzip", "bzip2", "no qid", "cut gzip"],  # packed bytes hold the second of their making
)
def test_a_letor_file_without_rows_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "none.txt").write_bytes(content)
    with pytest.raises(ValueError, match=rf"none\.txt holds no rows that can be read\. {message}"):
        read_letor(tmp_path / "none.txt")
    with pytest.raises(ValueError, match=r"gone\.txt is not a file"):
        read_letor(tmp_path / "gone.txt")


@pytest.mark.parametrize("pack", [gzip.compress, partial(bz2.compress, compresslevel=1)])  # in blocks of 100 kB
def test_of_a_packed_letor_file_that_breaks_off_whole_lines_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pack: Callable[[bytes], bytes]
) -> None:
    generator = np.random.default_rng(3)
    lines = [f"{n % 2} qid:1 1:{value!r}\n" for n, value in enumerate(generator.random(15_000).tolist())]
    packed = pack("".join(lines).encode())
    (tmp_path / "cut").write_bytes(packed[: len(packed) * 3 // 4])
    rows = read_letor(tmp_path / "cut")
    kept = counts(rows)["documents"]
    assert 0 < kept < len(lines)
    assert (
        np.asarray(rows[0]["docs"])[:, 0].tolist()
        == np.float32([line.split(":")[-1] for line in lines[:kept]]).tolist()
    )
    assert f"1 files cut short (first: {tmp_path}/cut breaks off in line {kept + 1}" in caplog.text
    with pytest.raises(ValueError, match="cut breaks off in line"):
        read_letor(tmp_path / "cut", strict=True)


# Flat rows

ROWS = st.lists(
    st.tuples(
        st.sampled_from([*"abcd", None]),
        st.sampled_from(["x", "y", "zz", "", " \u3000\n", None]),
        st.sampled_from([0.0, 1.0, 2.0, math.nan, -math.inf, None]),
    ),
    max_size=30,
)


@given(rows=ROWS, keep_all=st.booleans(), ranks=st.booleans(), most=st.sampled_from([1, 4, 1000]))
def test_flat_rows_become_lists_as_a_dictionary_would_collect_them(
    rows: list[Any], keep_all: bool, ranks: bool, most: int
) -> None:
    columns = {name: [row[place] for row in rows] for place, name in enumerate(("query", "doc", "label"))}
    features = Features({"query": Value("string"), "doc": Value("string"), "label": Value("float64")})
    whole = [row for row in rows if None not in row and math.isfinite(row[2]) and row[1].strip()]
    expected: dict[str, dict[str, float]] = {}
    for query, doc, label in whole:
        own = expected.setdefault(query, {})
        own[doc] = (min if ranks else max)(label, own.get(doc, label))
    if ranks:
        expected = {q: {doc: max(own.values()) - rank for doc, rank in own.items()} for q, own in expected.items()}
    kept = {query: own for query, own in expected.items() if keep_all or len(set(own.values())) > 1}
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "BYTES", most)
        flat = Dataset.from_dict(columns, features=features)
        grouped = group_by_query(flat, ranks=ranks, keep_all=keep_all, cache_dir=folder)
        assert list(grouped["query"]) == list(kept)
        assert list(grouped["docs"]) == [list(own) for own in kept.values()]
        assert list(grouped["labels"]) == [list(own.values()) for own in kept.values()]
        found = counts(grouped)
        assert found.get("documents given again", 0) == len(whole) - sum(map(len, expected.values()))
        assert found.get("lists of one label dropped", 0) == len(expected) - len(kept)


@pytest.mark.usefixtures("own_cache")
def test_selected_rows_alone_are_grouped_and_columns_may_have_other_names() -> None:
    rows = Dataset.from_dict({"qid": [7, 7, 7, 8], "text": ["a", "b", "c", "d"], "grade": ["1", "0", "2", "0"]})
    grouped = group_by_query(rows.select([2, 1]), "qid", "text", "grade")
    assert grouped[:] == {"query": [7], "docs": [["c", "b"]], "labels": [[2.0, 0.0]]}


@pytest.mark.usefixtures("own_cache")
def test_rows_that_are_not_complete_are_counted_and_an_error_in_strict_mode() -> None:
    rows = Dataset.from_dict({"query": ["a", "a", None, "b"], "doc": ["x", "y", "z", "v"], "label": [1, 0, 1, 1]})
    expected = {"rows that are not complete": 1, "lists": 1, "documents": 2, "lists of one label dropped": 1}
    assert counts(group_by_query(rows)) == expected
    with pytest.raises(ValueError, match="row 2: the query, document or label is None"):
        group_by_query(rows, strict=True)


RANKS = {"query": ["a", "b", "a", "a", "b", "b", "b"], "doc": [*"uvwxyzw"], "label": [2, 3, 1, 3, 1, 4, 2]}


@pytest.mark.usefixtures("own_cache")
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


@pytest.mark.usefixtures("own_cache")
def test_rows_that_cannot_be_grouped_are_refused() -> None:
    rows = Dataset.from_dict({"query": ["a"], "doc": ["b"], "label": ["much"]})
    with pytest.raises(ValueError, match="no column passage; the rows have query, doc, label"):
        group_by_query(rows, doc="passage")
    with pytest.raises(ValueError, match="label does not hold numbers"):
        group_by_query(rows)
    lists = Dataset.from_dict({"query": [["a"]], "doc": ["b"], "label": [1]})
    with pytest.raises(ValueError, match=r"The column query does not hold texts or identifiers, but List\("):
        group_by_query(lists)


@pytest.mark.usefixtures("own_cache")
def test_labels_that_are_not_finite_made_lists_of_one_label_of_whole_queries_and_are_left_out_and_named() -> None:
    rows = Dataset.from_dict({"query": [*"aaabb"], "doc": [*"uvwxy"], "label": [1.0, math.nan, 0.0, math.inf, 2.0]})
    grouped = group_by_query(rows)
    assert grouped[:] == {"query": ["a"], "docs": [["u", "w"]], "labels": [[1.0, 0.0]]}
    assert counts(grouped) == {
        "rows whose label is not finite": 2,
        "lists": 1,
        "documents": 2,
        "lists of one label dropped": 1,
    }
    with pytest.raises(ValueError, match="row 1: the label is NaN or infinite"):
        group_by_query(rows, strict=True)
    with pytest.raises(ValueError, match="row 0: the label is NaN or infinite"):
        group_by_query(rows.select([3, 4]), strict=True)


@pytest.mark.usefixtures("own_cache")
def test_blank_and_repeated_documents_of_a_query_are_left_out_and_counted() -> None:
    columns = {"query": [*"aabaab"], "doc": ["x", "y", "x", "x", "\u00a0\t", "z"], "label": [1, 2, 1, 3, 0, 2]}
    rows = Dataset.from_dict(columns)
    grouped = group_by_query(rows)
    assert grouped["docs"] == [["x", "y"], ["x", "z"]]  # in the order of their first rows; x of b is another matter
    assert grouped["labels"] == [[3.0, 2.0], [1.0, 2.0]]
    found = {"rows whose document is blank": 1, "lists": 2, "documents": 4, "documents given again": 1}
    assert counts(grouped) == found
    assert group_by_query(rows, ranks=True)["labels"] == [[1.0, 0.0], [1.0, 0.0]]  # by the best rank
    with pytest.raises(ValueError, match="row 4: the document has no text"):
        group_by_query(rows, strict=True)


@pytest.mark.parametrize("order", [None, [5, 0, 4, 2, 1, 3]], ids=["as they are", "selected"])
@pytest.mark.parametrize(
    "docs",
    [
        [[float(n), n / 2] for n in range(6)],
        [{"text": str(n), "initial_scores": [0.5, float(n)]} for n in range(6)],
        [[f"{n}", "x"] for n in range(6)],
    ],
    ids=["vectors", "structs", "lists of texts"],
)
@pytest.mark.usefixtures("own_cache")
def test_documents_that_are_no_texts_are_grouped_and_keep_their_type(docs: list[Any], order: Any) -> None:
    """Arrow gathers no such columns into lists of its own."""
    rows = Dataset.from_dict({"query": [*"abbaab"], "doc": docs, "label": [0, 1, 0, 1, 0, 0]})
    first, second = ("b", "a") if order else ("a", "b")
    numbers = {"a": [0, 3, 4], "b": [1, 2, 5]} if not order else {"b": [5, 2, 1], "a": [0, 4, 3]}
    grouped = group_by_query(rows.select(order) if order else rows)
    assert grouped["query"] == [first, second]
    assert grouped["docs"] == [[docs[n] for n in numbers[query]] for query in (first, second)]
    assert grouped["labels"] == [[float(n in (1, 3)) for n in numbers[query]] for query in (first, second)]
    assert grouped.features["docs"] == List(rows.features["doc"])


@pytest.mark.usefixtures("own_cache")
def test_equal_vectors_of_a_query_are_documents_of_their_own() -> None:
    rows = Dataset.from_dict({"query": ["a"] * 3, "doc": [[1.0], [1.0], [2.0]], "label": [1, 0, 0]})
    assert group_by_query(rows)["labels"] == [[1.0, 0.0, 0.0]]


def test_more_text_than_an_array_of_strings_holds_is_grouped(tmp_path: Path) -> None:
    """Arrow's strings end at 2 GB of an array. Here one megabyte in memory is each of 2,100 chunks of a column."""
    docs = pa.array([letter * (1 << 19) for letter in "xy"])
    chunks = [
        pa.record_batch({"query": [f"q{n // 30}"] * 2, "doc": docs, "label": [float(n % 30), 0.5]})
        for n in range(2100)
    ]
    rows = Dataset(pa.Table.from_batches(chunks), fingerprint="more than two gigabytes")
    grouped = group_by_query(rows, cache_dir=tmp_path)
    assert grouped["query"] == [f"q{n}" for n in range(70)]
    assert grouped["labels"] == [[29.0, 0.5]] * 70
    assert grouped[69]["docs"] == docs.to_pylist()
    assert counts(grouped) == {"lists": 70, "documents": 140, "documents given again": 4200 - 140}


def test_many_rows_keep_the_order_in_which_they_are_met(tmp_path: Path) -> None:
    """Arrow gives the groups of more than some thousand rows in an order of its own."""
    generator = np.random.default_rng(5)
    queries, docs = generator.integers(0, 3000, 80_000).tolist(), generator.integers(0, 5000, 80_000).tolist()
    labels = generator.random(80_000).tolist()
    expected: dict[int, dict[str, float]] = {}
    for query, doc, label in zip(queries, docs, labels):
        own = expected.setdefault(query, {})
        own[f"text {doc}"] = max(label, own.get(f"text {doc}", 0.0))
    rows = Dataset.from_dict({"query": queries, "doc": [f"text {doc}" for doc in docs], "label": labels})
    grouped = group_by_query(rows, cache_dir=tmp_path)
    assert list(grouped["query"]) == list(expected)
    assert list(grouped["docs"]) == [list(own) for own in expected.values()]
    assert list(grouped["labels"]) == [list(own.values()) for own in expected.values()]


@pytest.mark.usefixtures("own_cache")
def test_rows_of_which_none_is_whole_give_no_lists_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    rows = Dataset.from_dict({"query": ["a", "a"], "doc": ["x", ""], "label": [math.nan, 1.0]})
    for keep_all in (False, True):
        caplog.clear()
        assert len(group_by_query(rows, keep_all=keep_all)) == 0
        assert len(group_by_query(rows.select([]), keep_all=keep_all)) == 0
        warnings = [record.getMessage() for record in caplog.records if "No list is left" in record.getMessage()]
        assert [message[:26] for message in warnings] == ["No list is left of 2 rows.", "No list is left of 0 rows."]
        assert "1 rows whose label is not finite (first: row 0" in warnings[0]
        assert ("keep_all=True keeps the others" in caplog.text) is not keep_all


@pytest.mark.usefixtures("own_cache")
def test_queries_of_one_label_alone_left_an_empty_data_set_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    rows = Dataset.from_dict({"query": [*"aab"], "doc": [*"xyz"], "label": [1, 1, 1]})
    assert len(group_by_query(rows)) == 0
    left_out = "0 lists, 0 documents, 2 lists of one label dropped. Each query needs documents of two labels;"
    assert f"No list is left of 3 rows. {left_out}" in caplog.text
    caplog.clear()
    assert len(group_by_query(rows, keep_all=True)) == 2
    assert caplog.text == ""


@pytest.mark.parametrize("rows", [DatasetDict(train=Dataset.from_dict({"query": []})), [{"query": "a"}]], ids=type)
@pytest.mark.parametrize("read", [group_by_query, from_hard_negatives, EpochSampler(4).attach])
def test_what_is_no_data_set_is_named(read: Callable[[Any], Any], rows: Any) -> None:
    with pytest.raises(ValueError, match=rf'is {type(rows).__name__}, expected a datasets.Dataset: .*data\["train"\]'):
        read(rows)


def test_lists_are_read_again_while_rows_and_options_are_the_same(tmp_path: Path) -> None:
    rows = Dataset.from_dict({"query": ["a"] * 3, "doc": [*"xyz"], "label": [1, 1, 0]})
    for options, files_there in (({}, 1), ({}, 1), ({"ranks": True}, 2), ({"keep_all": True}, 3)):
        group_by_query(rows, cache_dir=tmp_path, **options)
        assert len(list(tmp_path.glob("*.arrow"))) == files_there
    assert group_by_query(rows.select([0, 2]), cache_dir=tmp_path)["docs"] == [["x", "z"]]
