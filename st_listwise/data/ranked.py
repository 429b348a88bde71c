"""Lines of a run → ranked lists: in order, each document once, only queries and documents that have a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from st_listwise.data.tally import Tally
from st_listwise.data.texts import Corpus

Key = Literal["ranks", "scores"]


@dataclass
class RankedLists:
    """Lists one after the other, each best first."""

    queries: list[str]  #: identifier of each list
    starts: np.ndarray  #: ``(lists + 1,)`` where each begins; the last is the number of all documents
    docs: pa.Array  #: identifiers
    rows: np.ndarray  #: places in the corpus
    ranks: np.ndarray
    scores: np.ndarray

    def __len__(self) -> int:
        return len(self.queries)


class Ranker:
    """Puts lines into order.

    Args:
        name: The run, for messages.
        by: What orders a list: the rank, or the score; equal ones stay in the order of the file.
        depth: Most documents of a list. None: all.
        queries: Numbers that the lines have for queries → identifiers.
        texts: Texts of queries.
        corpus: Texts of documents.
        tally: Takes the faults.
    """

    def __init__(
        self,
        name: str,
        by: Key,
        depth: int | None,
        queries: list[str],
        texts: dict[str, str],
        corpus: Corpus,
        tally: Tally,
    ) -> None:
        self.name, self.by, self.depth, self.queries = name, by, depth, queries
        self.corpus, self.tally = corpus, tally
        self._has_text = np.array([query in texts for query in queries], bool)

    def __call__(self, lines: pa.Table) -> RankedLists:
        """Lists of all lines of some queries, as :meth:`RunSpool.part` gives them.

        Raises:
            ValueError: in strict mode, a fault.
        """
        lines = self._ordered(self._with_query(lines))
        docs = lines["doc"].combine_chunks()
        rows = self.corpus.rows(docs)
        lines = self._without(lines, rows < 0, "run lines whose document is not in the corpus or has no text")
        rows = rows[rows >= 0]
        again = _again(lines)
        lines = self._without(lines, again, "run lines of a document that the list has already")
        rows = rows[~again]
        codes = lines["query"].to_numpy()
        kept = slice(None) if self.depth is None else _places(codes) < self.depth
        lists = self._lists(lines.filter(pa.array(kept)) if self.depth is not None else lines, rows[kept])
        self._check_direction(lists)
        return lists

    def _with_query(self, lines: pa.Table) -> pa.Table:
        unknown = ~self._has_text[lines["query"].to_numpy()]
        return self._without(lines, unknown, "run lines whose query has no text")

    def _ordered(self, lines: pa.Table) -> pa.Table:
        codes, line = lines["query"].to_numpy(), lines["line"].to_numpy()
        key = lines["rank"].to_numpy() if self.by == "ranks" else -lines["score"].to_numpy()
        return lines.take(pa.array(np.lexsort((line, key, codes))))

    def _without(self, lines: pa.Table, out: np.ndarray, what: str) -> pa.Table:
        """Lines but those, which are counted."""
        if not out.any():
            return lines
        places = np.flatnonzero(out)
        first = int(places[np.argmin(lines["line"].to_numpy()[places])])
        row = {name: lines[name][first].as_py() for name in ("query", "doc", "line")}
        place = f"{self.name}, line {row['line']}: query {self.queries[row['query']]!r}, document {row['doc']!r}"
        self.tally.fault(what, place, len(places))
        return lines.filter(pa.array(~out))

    def _lists(self, lines: pa.Table, rows: np.ndarray) -> RankedLists:
        codes = lines["query"].to_numpy()
        starts = np.flatnonzero(np.diff(codes, prepend=-1))
        return RankedLists(
            queries=[self.queries[code] for code in codes[starts]],
            starts=np.append(starts, len(codes)),
            docs=lines["doc"].combine_chunks(),
            rows=rows,
            ranks=lines["rank"].to_numpy(),
            scores=lines["score"].to_numpy(),
        )

    def _check_direction(self, lists: RankedLists) -> None:
        """Scores that rise with the rank from the first document to the last: ranks stand where scores should."""
        if not len(lists):
            return
        rises = np.diff(lists.scores) * np.diff(lists.ranks) > 0
        inside = np.append(rises, True)  # a pair of two lists counts for neither
        inside[lists.starts[1:] - 1] = True
        wrong = np.logical_and.reduceat(inside, lists.starts[:-1]) & (np.diff(lists.starts) > 2)
        if wrong.any():
            query = lists.queries[int(np.flatnonzero(wrong)[0])]
            place = f"{self.name}: query {query!r}; larger scores are better, and the order here is by {self.by}"
            self.tally.fault("lists whose scores rise with the rank", place, int(wrong.sum()))


def _again(lines: pa.Table) -> np.ndarray:
    """Which lines of an ordered table have a document that stands before in the same list."""
    docs = lines["doc"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    if not len(docs):
        return np.zeros(0, bool)
    first = np.unique(lines["query"].to_numpy() * (docs.max() + 1) + docs, return_index=True)[1]
    again = np.ones(len(docs), bool)
    again[first] = False
    return again


def _places(codes: np.ndarray) -> np.ndarray:
    """Place of each line in its list, from 0."""
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    return np.arange(len(codes)) - np.repeat(starts, np.diff(np.append(starts, len(codes))))
