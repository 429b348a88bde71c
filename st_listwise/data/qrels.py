"""Relevance judgments: TREC qrels, or three columns with a header as BEIR and MTEB have them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from st_listwise.data.files import excerpt, numbered_lines
from st_listwise.data.tally import Tally, is_ranking
from st_listwise.data.texts import Corpus

#: Names of columns in a header: of the query, the document and the grade.
HEADERS = (
    {"query-id", "query_id", "qid", "query"},
    {"corpus-id", "corpus_id", "doc-id", "doc_id", "docid", "docno"},
    {"score", "grade", "relevance", "label", "rel"},
)


class Judgment(NamedTuple):
    """One line."""

    query: str
    doc: str
    grade: float
    line: int


class Qrels:
    """Grades by query and document, not below 0.

    Args:
        source: A file, plain or gzip, or judgments.
        tally: Takes the faults.

    Raises:
        ValueError: there are no judgments, or none above 0; in strict mode, any fault.
    """

    def __init__(self, source: str | os.PathLike[str] | Iterable[Judgment], tally: Tally) -> None:
        self.name = str(source) if isinstance(source, (str, os.PathLike)) else "qrels"
        self.grades: dict[str, dict[str, float]] = {}
        self._lines: dict[str, int] = {}  #: of a query's first judgment
        self._docs: dict[str, int] = {}  #: of a document's first judgment
        for judgment in _judgments(source, tally) if isinstance(source, (str, os.PathLike)) else source:
            self._add(judgment, tally)
        if not self.grades:
            raise ValueError(f"{self.name} holds no judgments. {tally.sentence()}")
        self._check_grades(tally)

    def check_docs(self, corpus: Corpus, tally: Tally) -> None:
        """Count judged documents that the corpus lacks."""
        unknown = np.flatnonzero(corpus.rows(pa.array(list(self._docs), pa.string())) < 0)
        if len(unknown):
            doc = list(self._docs)[unknown[0]]
            place = f"{self.name}, line {self._docs[doc]}: {doc!r} is not in the corpus"
            tally.fault("judged documents that are not in the corpus", place, len(unknown))

    def _add(self, judgment: Judgment, tally: Tally) -> None:
        query, doc, grade, line = judgment
        own = self.grades.setdefault(query, {})
        self._lines.setdefault(query, line)
        self._docs.setdefault(doc, line)
        if doc in own:
            place = f"{self.name}, line {line}: query {query!r}, document {doc!r} again; the higher grade counts"
            tally.fault("judgments of a known pair", place)
        if grade < 0:
            tally.count("grades below 0, taken as 0")
        own[doc] = max(own.get(doc, 0.0), grade)

    def _check_grades(self, tally: Tally) -> None:
        zero = [query for query, own in self.grades.items() if max(own.values()) <= 0]
        if zero:
            place = f"{self.name}, line {self._lines[zero[0]]}: all grades of query {zero[0]!r} are 0"
            tally.fault("judged queries without a relevant document", place, len(zero))
        if len(zero) == len(self.grades):
            raise ValueError(f"{self.name} has no grade above 0: there is nothing to learn or measure.")
        long = [query for query, own in self.grades.items() if len(own) > 2]
        ranked = [query for query in long if is_ranking(list(self.grades[query].values()))]
        if 2 * len(ranked) > len(long):
            place = (
                f"{self.name}, line {self._lines[ranked[0]]}: query {ranked[0]!r} has 1 to "
                f"{len(self.grades[ranked[0]])}, each once; grades are larger for better documents, and a ranking is "
                "read with read_teacher_run"
            )
            tally.fault("queries whose grades look like ranks", place, len(ranked))


def _judgments(path: str | os.PathLike[str], tally: Tally) -> Iterator[Judgment]:
    layout = None
    for number, line in numbered_lines(path, tally):
        fields = line.split()
        if layout is None:
            layout = _layout(fields)
            if layout.header:
                continue
        fault = "" if len(fields) == layout.width else f"{len(fields)} columns, not {layout.width}"
        query, doc, grade = [fields[place] for place in layout.places] if not fault else ("", "", "0")
        if not fault and not _is_finite(grade):
            fault = f"the grade {grade!r} is no number"
        if fault:
            tally.fault("qrels lines that cannot be read", f"{path}, line {number}: {fault}: {excerpt(line)}")
        else:
            yield Judgment(query, doc, float(grade), number)


class _Layout(NamedTuple):
    width: int
    places: list[int]  #: of query, document and grade
    header: bool


def _layout(first: list[str]) -> _Layout:
    """Columns as the first line has them: by the names of a header, or by their number."""
    names = [next((place for place, name in enumerate(first) if name.lower() in known), -1) for known in HEADERS]
    if min(names) >= 0:
        return _Layout(len(first), names, True)
    return _Layout(3, [0, 1, 2], False) if len(first) == 3 else _Layout(4, [0, 2, 3], False)


def _is_finite(number: str) -> bool:
    try:
        return math.isfinite(float(number))
    except ValueError:
        return False
