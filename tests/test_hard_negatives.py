"""Mined hard negatives as lists: the real miner's output in each format, and rows that it could have left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.util import mine_hard_negatives
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from st_listwise.data import counts, from_hard_negatives

TEXTS = ["cat", "dog", "fish", "bird", "horse", "mouse", "sheep", "whale"]
PAIRS = {"anchor": ["pet", "pet", "sea"], "answer": ["cat", "dog", "fish"]}


def words() -> SentenceTransformer:
    """A model that puts words on a circle, by their number in the list; "pet" and "sea" between them."""
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate([*TEXTS, "pet", "sea"])}, "cat"))
    angles = np.array([*range(len(TEXTS)), 0.5, 2.2]) / 8
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=vectors)], device="cpu")


def mined(num_negatives: int = 2, **options: Any) -> Dataset:
    rows = Dataset.from_dict(PAIRS)
    return mine_hard_negatives(rows, words(), corpus=TEXTS, num_negatives=num_negatives, verbose=False, **options)


@pytest.mark.parametrize("output_scores", [False, True])
@pytest.mark.parametrize("output_format", ["labeled-list", "n-tuple", "triplet"])
def test_what_the_miner_gives_becomes_one_list_a_query(output_format: Any, output_scores: bool) -> None:
    rows = mined(output_format=output_format, output_scores=output_scores)
    lists = from_hard_negatives(rows, strict=True)
    found = {row["query"]: dict(zip(row["docs"], row["labels"])) for row in lists}
    # the nearest that are no positives of the query, by hand: 0.5 to 2, 3; 2.2 to 1, 3
    assert found == {
        "pet": {"cat": 1.0, "dog": 1.0, "fish": 0.0, "bird": 0.0},
        "sea": {"fish": 1.0, "bird": 0.0, "dog": 0.0},
    }
    assert counts(lists)["lists"] == 2
    assert counts(lists)["documents"] == 7


@pytest.mark.parametrize("output_format", ["labeled-list", "n-tuple", "triplet"])
def test_the_miners_scores_can_be_the_labels(output_format: Any) -> None:
    lists = from_hard_negatives(mined(output_format=output_format, output_scores=True), labels="scores")
    found = {row["query"]: dict(zip(row["docs"], row["labels"])) for row in lists}
    expected = {"fish": np.cos(0.2 / 8), "bird": np.cos(0.8 / 8), "dog": np.cos(1.2 / 8)}
    assert found["sea"] == pytest.approx(expected, abs=1e-6)


def test_a_positive_among_its_own_candidates_is_no_negative() -> None:
    rows = mined(4, include_positives=True, output_format="n-tuple")
    found = {row["query"]: dict(zip(row["docs"], row["labels"])) for row in from_hard_negatives(rows)}
    assert found["pet"] == {"cat": 1.0, "dog": 1.0, "fish": 0.0, "bird": 0.0}


def test_negatives_come_by_their_number_and_those_that_are_empty_are_left_out() -> None:
    names = ["query", "positive", *(f"negative_{place}" for place in range(1, 12))]
    rows = Dataset.from_list([dict(zip(names, ["q", "yes", *map(str, range(1, 11)), None]))])
    rows = rows.select_columns([*names[:2], *sorted(names[2:])])  # negative_1, negative_10, negative_11, negative_2
    lists = from_hard_negatives(rows)
    assert lists[0]["docs"] == ["yes", *map(str, range(1, 11))]
    assert counts(lists)["documents without a text or a finite number"] == 1
    with pytest.raises(ValueError, match=r"row 0: document None, label 0\.0"):
        from_hard_negatives(rows, strict=True)


def test_rows_that_are_wrong_are_counted_and_named() -> None:
    rows = Dataset.from_dict(
        {
            "query": ["a", " ", "b", "a", "c"],
            "docs": [["x", "y"], ["x", "y"], ["x", "y"], ["z", "x"], ["x", "y", "z"]],
            "labels": [[1, 0], [1, 0], [1, 1], [1, 0], [1, 0]],
        }
    )
    lists = from_hard_negatives(rows)
    assert lists[:] == {"query": ["a"], "docs": [["x", "y", "z"]], "labels": [[1.0, 0.0, 1.0]]}
    assert counts(lists) == {
        "rows without a query": 1,
        "documents without a text or a finite number": 1,
        "lists": 1,
        "documents": 3,
        "documents given again": 1,
        "lists of one label dropped": 2,
    }
    with pytest.raises(ValueError, match="row 1: ' '"):
        from_hard_negatives(rows, strict=True)
    with pytest.raises(ValueError, match="row 3: 3 documents, but 2 labels"):
        from_hard_negatives(rows.select([0, 2, 3, 4]), strict=True)
    with pytest.raises(ValueError, match="No list is left"):
        from_hard_negatives(rows.select([2]))


def test_a_fault_after_many_rows_without_one_is_counted_in_place_of_a_type_error() -> None:
    negatives = [f"no {n}" for n in range(2500)]
    rows = Dataset.from_dict(
        {
            "query": [f"q{n}" for n in range(2500)],
            "positive": ["yes"] * 2500,
            "negative": [*negatives[:2000], None, *negatives[2001:]],
        }
    )
    lists = from_hard_negatives(rows)
    assert counts(lists)["documents without a text or a finite number"] == 1
    assert counts(lists)["lists"] == 2499
    with pytest.raises(ValueError, match="row 2000: document None"):
        from_hard_negatives(rows, strict=True)


@pytest.mark.parametrize(
    ("docs", "numbers", "place"), [(None, [1, 0], "no documents, but 2"), (["x", "y"], None, "2 documents, but no")]
)
@pytest.mark.parametrize("name", ["labels", "scores"])
def test_a_row_without_documents_or_labels_is_a_fault(docs: Any, numbers: Any, place: str, name: str) -> None:
    rows = Dataset.from_dict({"query": ["a", "b"], "docs": [["x", "y"], docs], name: [[1, 0], numbers]})
    options: Any = {"labels": name} if name == "scores" else {}
    lists = from_hard_negatives(rows, **options)
    assert lists[:] == {"query": ["a"], "docs": [["x", "y"]], "labels": [[1.0, 0.0]]}
    assert counts(lists)["documents without a text or a finite number"] == 1
    with pytest.raises(ValueError, match=f"row 1: {place} {name}"):
        from_hard_negatives(rows, strict=True, **options)


def test_a_row_without_documents_is_a_fault_where_the_first_document_is_the_positive() -> None:
    rows = Dataset.from_dict({"query": ["a", "b"], "docs": [["x", "y"], None], "scores": [[2, 1], [2, 1]]})
    with pytest.raises(ValueError, match="row 1: no documents"):
        from_hard_negatives(rows, strict=True)
    assert from_hard_negatives(rows)["docs"] == [["x", "y"]]


def test_rows_of_which_none_has_a_query_are_an_error_that_counts_them() -> None:
    rows = Dataset.from_dict({"query": [" "], "docs": [["x", "y"]], "labels": [[1, 0]]})
    with pytest.raises(ValueError, match=r"No list is left\. 1 rows without a query \(first: row 0"):
        from_hard_negatives(rows)


@pytest.mark.parametrize(
    ("names", "others"),
    [
        (["query_id", "query", "positive", "negative_1"], "positive"),
        (["query", "answer_id", "positive", "negative"], "positive"),
        (["query", "positive", "negative", "labels", "source", "url"], "source, url"),
    ],
)
def test_a_column_more_made_the_query_a_positive_and_is_refused(names: list[str], others: str) -> None:
    rows = Dataset.from_dict({name: ["a"] for name in names})
    message = rf"{names[0]} and {names[1]}, are taken as query and positive.* of {others}\. .*select_columns"
    with pytest.raises(ValueError, match=message):
        from_hard_negatives(rows)
    chosen = [name for name in names if name in ("query", "positive") or name.startswith("negative")]
    assert chosen[:2] == ["query", "positive"]
    with pytest.raises(ValueError, match="No list is left"):  # read, and "a" is positive and negative
        from_hard_negatives(rows.select_columns(chosen))


def test_several_processes_give_the_same_lists() -> None:
    rows = Dataset.from_dict(
        {"query": [f"q{n // 2}" for n in range(20)], "yes": ["a"] * 20, "negative": [str(n) for n in range(20)]}
    )
    assert from_hard_negatives(rows, num_proc=2)[:] == from_hard_negatives(rows)[:]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"query": ["a"], "doc": ["b"], "label": [1]}, {}, "query, doc, label are not those of .* for group_by_query"),
        ({"query": ["a"], "docs": [["b"]]}, {}, "query, docs are not those"),
        ({"query": ["a"], "docs": [["b"]], "labels": [[1]]}, {"labels": "scores"}, "no column scores, only query"),
        (
            {"query": ["a"], "docs": [["b"]], "labels": [1]},
            {},
            "column labels does not hold lists of numbers, but Value",
        ),
        ({"query": ["a"], "docs": [["b"]], "labels": [["1"]]}, {}, "column labels does not hold lists of numbers"),
        ({"query": ["a"]}, {"labels": "both"}, 'expected "positives" or "scores"'),
    ],
)
def test_columns_of_another_form_are_refused(columns: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hard_negatives(Dataset.from_dict(columns), **options)
