"""TREC collections → lists: a run with judgments, or a teacher's run whose order is the label; reranked runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
from datasets import Dataset, DatasetDict

from st_listwise.data.collection import Collection
from st_listwise.data.conversion import converted
from st_listwise.data.ir_dataset import IrDatasetPart, opened
from st_listwise.data.qrels import Qrels
from st_listwise.data.tally import Tally
from st_listwise.data.texts import Texts

Source = str | os.PathLike[str]


def read_trec(
    run: Source | None = None,
    qrels: Source | None = None,
    corpus: Texts | None = None,
    queries: Texts | None = None,
    *,
    ir_dataset: str | None = None,
    depth: int | None = None,
    keep_all: bool = False,
    strict: bool = False,
    num_proc: int | None = None,
    cache_dir: Source | None = None,
) -> Dataset:
    """Lists of judged documents from a run, relevance judgments, documents and queries.

    Documents of a query come by the run's scores, best first, equal scores in the order of the file. Those that are
    not judged have label 0. Files may be gzipped; the run may be larger than memory, and in any order.

    Args:
        run: Lines ``qid Q0 docid rank score tag``. The rank is not looked at.
        qrels: Lines ``qid 0 docid grade``, or three columns query, document and grade, with or without a header that
            names them (``query-id corpus-id score``). Grades below 0 are taken as 0.
        corpus: JSON lines (``_id``, ``id`` or ``doc_id``, ``title``, ``text``) or ``id<TAB>text``; or a mapping from
            identifiers to texts, or a list of such pairs; or a data set with these columns. The title goes before the
            text.
        queries: As ``corpus``; identifiers may be named ``query_id``.
        ir_dataset: Identifier in ir-datasets, which gives those of the four that are not named (its scored documents
            as run). Needs ``pip install ir_datasets``.
        depth: Most documents of a query. None: all.
        keep_all: Keep lists of one label, to evaluate on them or to rerank them. They teach nothing.
        strict: Raise at the first fault in place of counting it.
        num_proc: Processes that put lists into order and look their texts up, half a million lines of the run at a
            time; rows and counts are the same. Each takes some hundred MB. Files are read by one process, as lines of
            gzip can only be found one after the other. None: one process for all.
        cache_dir: Folder in which lists are written, a file for each call with other input; it is read again while the
            input and the options are the same. None: a folder in that of the data sets.

    Returns:
        ``query``, ``docs``, ``labels``; ``missed``: grades above 0 that the list lacks, for
        :class:`~st_listwise.evaluation.GradedRerankingEvaluator`; ``query_id``, ``doc_ids``: for :func:`write_run`.
        Train on ``rows.select_columns(["query", "docs", "labels"])``. What was left out is logged, and given by
        :func:`~st_listwise.data.counts`.

    Raises:
        ValueError: a part is missing, empty, or of no use, so that there is no list; ``depth`` or ``num_proc`` is
            below 1; in strict mode any fault: lines that cannot be read, identifiers that stand twice, documents or
            queries without text, no relevant document, grades that look like ranks, scores that rise with the rank, a
            file that breaks off.
        ImportError: ir-datasets is not installed.
    """
    parts = _parts(ir_dataset, run=run, qrels=qrels, corpus=corpus, queries=queries)

    def convert(folder: Path, output: Path, tally: Tally) -> None:
        judged = Qrels(opened(parts["qrels"]), tally)
        collection = Collection(parts, folder, tally)
        judged.check_docs(collection.corpus, tally)
        collection.write(output, "scores", depth, _JudgedLabels(judged.grades), keep_all, num_proc)
        if missing := judged.grades.keys() - set(collection.run.queries):
            tally.count("judged queries that the run lacks", len(missing))

    return converted(convert, ["qrels", *parts.values(), depth, keep_all], str(parts["run"]), strict, cache_dir)


def read_teacher_run(
    run: Source,
    corpus: Texts,
    queries: Texts,
    *,
    labels: Literal["ranks", "scores"] = "ranks",
    depth: int | None = None,
    keep_all: bool = False,
    strict: bool = False,
    num_proc: int | None = None,
    cache_dir: Source | None = None,
) -> Dataset:
    """Lists whose labels are a teacher's ranking, as an LLM reranker leaves it in a run file (Rank-DistiLLM).

    Args:
        run: Lines ``qid Q0 docid rank score tag``.
        corpus: As in :func:`read_trec`, and so are those below.
        queries: Likewise.
        labels: "ranks": n - 1 for the best of n documents, by the rank column, down to 0; what is left out leaves no
            gap; equal ranks share a label. "scores": the teacher's scores as they are.
        depth: Likewise: the best of each list.
        keep_all: Likewise: lists of one document, or of one label.
        strict: Likewise.
        num_proc: Likewise.
        cache_dir: Likewise.

    Returns:
        ``query``, ``docs``, ``labels``, ``query_id``, ``doc_ids``, documents best first. Lists of one label are left
        out, unless ``keep_all``.

    Raises:
        ValueError: as :func:`read_trec`.
    """
    if labels not in ("ranks", "scores"):
        raise ValueError(f'labels={labels!r} is not known; expected "ranks" or "scores".')
    parts = _parts(None, run=run, corpus=corpus, queries=queries)
    make = _rank_labels if labels == "ranks" else _score_labels

    def convert(folder: Path, output: Path, tally: Tally) -> None:
        Collection(parts, folder, tally).write(output, labels, depth, make, keep_all, num_proc)

    return converted(convert, [labels, *parts.values(), depth, keep_all], str(run), strict, cache_dir)


def write_run(
    path: Source, rows: Iterable[Mapping[str, Any]], scores: Iterable[Sequence[float]], tag: str = "st-listwise"
) -> None:
    """Write a reranked run, as trec_eval and ir-measures read it. The file is there whole or not at all.

    Args:
        path: The file; written anew if it is there. Its folder is made.
        rows: Lists with ``query_id`` and ``doc_ids``, from :func:`read_trec`.
        scores: For each list the scores of its documents, larger is better.
        tag: Last column: what made the run.

    Raises:
        ValueError: rows lack a column, or are not as many as lists of scores; scores do not fit the documents, or one
            is not finite; the tag or an identifier is empty or has spaces, which part the columns. Nothing is left of
            the file then.
    """
    _check_word(tag, "tag", "take another one, such as st-listwise")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for row, own in _paired(rows, scores):
                file.writelines(_run_lines(row, own, tag))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _paired(rows: Iterable[Any], scores: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Rows with their scores; ValueError where one of both ends before the other."""
    end = object()
    pairs = enumerate(zip_longest(rows, scores, fillvalue=end))
    for number, (row, own) in pairs:
        if row is end or own is end:
            more = number + 1 + sum(1 for _ in pairs)
            found = (number, more) if row is end else (more, number)
            raise ValueError(f"There are {found[0]:,} rows, but {found[1]:,} lists of scores.")
        yield row, own


def _run_lines(row: Mapping[str, Any], scores: Sequence[float], tag: str) -> Iterator[str]:
    """Lines of one list, best first."""
    if missing := [name for name in ("query_id", "doc_ids") if name not in row]:
        raise ValueError(
            f"The rows have no {', '.join(missing)}: give those of read_trec or read_teacher_run as they were read, "
            "before select_columns."
        )
    query, docs = row["query_id"], row["doc_ids"]
    try:
        values = np.asarray(scores, np.float64)
    except (TypeError, ValueError):
        values = np.zeros(())  # of no shape that fits
    for id, what in ((query, "query_id"), *((doc, f"document of query {query!r}") for doc in docs)):
        _check_word(id, what, "rename it in run, corpus, queries and qrels alike")
    if values.shape != (len(docs),) or not np.isfinite(values).all():
        raise ValueError(
            f"Query {query!r} has {len(docs)} documents, and needs as many finite scores; got {scores!r:.200}."
        )
    for rank, place in enumerate(np.argsort(-values, kind="stable"), 1):
        yield f"{query} Q0 {docs[place]} {rank} {values[place]:.9g} {tag}\n"


def _check_word(word: Any, what: str, remedy: str) -> None:
    """ValueError unless it can stand in a column of a run."""
    if str(word).split() != [str(word)]:
        fault = "has spaces" if str(word) else "is empty"
        raise ValueError(f"{what} {word!r} {fault}, and columns of a run are parted by spaces: {remedy}.")


class _JudgedLabels:
    def __init__(self, grades: Mapping[str, Mapping[str, float]]) -> None:
        self.grades = grades

    def __call__(self, query: str, docs: list[str], ranks: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
        judged = self.grades.get(query, {})
        here = set(docs)
        missed = [grade for doc, grade in judged.items() if grade > 0 and doc not in here]
        return {"labels": [judged.get(doc, 0.0) for doc in docs], "missed": missed}


def _rank_labels(query: str, docs: list[str], ranks: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    return {"labels": (len(docs) - np.searchsorted(ranks, ranks, side="right")).astype(np.float64)}


def _score_labels(query: str, docs: list[str], ranks: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    return {"labels": scores}


def _parts(ir_dataset: str | None, **parts: Any) -> dict[str, Any]:
    """What is given, and what ir-datasets gives in place of the rest."""
    if missing := [name for name, part in parts.items() if part is None and ir_dataset is None]:
        raise ValueError(f"There is no {' and no '.join(missing)}: give a file, or an ir_dataset that has it.")
    for name, part in parts.items():
        if name in ("run", "qrels") and not isinstance(part, str | os.PathLike | None):
            raise ValueError(
                f"{name} is {type(part).__name__}: give the path of a file. Only corpus and queries can be mappings, "
                "lists or data sets."
            )
        if isinstance(part, DatasetDict):
            raise ValueError(f"{name} is DatasetDict: give one of its data sets, of {', '.join(map(repr, part))}.")
    if iterators := [name for name, part in parts.items() if isinstance(part, Iterator)]:
        raise ValueError(
            f"The {' and the '.join(iterators)} can be read only once, so that it is not known whether they were read "
            "before: give a file, a mapping or a list."
        )
    return {name: IrDatasetPart(str(ir_dataset), name) if part is None else part for name, part in parts.items()}
