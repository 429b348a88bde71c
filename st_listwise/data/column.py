"""A column of a data set, of any type and size: what it lacks, and rows of it by their numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

#: Rows that are looked up at once where all of a column are.
ROWS = 1 << 18


class Column:
    """A column in the order of the data set's rows, which need not be that of its table.

    Arrow's own take joins all chunks first, which more than 2 GB of text do not fit.

    Args:
        rows: The data set.
        name: A column of it.
    """

    def __init__(self, rows: Dataset, name: str) -> None:
        self.name = name
        self._table = rows.data.table[name]
        self._chunks = self._table.chunks
        self._ends = np.cumsum([0, *map(len, self._chunks)])
        self._places = None if rows._indices is None else rows._indices.column(0).to_numpy().astype(np.int64)
        type = self._table.type
        self.is_text = pa.types.is_string(type) or pa.types.is_large_string(type)

    def __len__(self) -> int:
        return len(self._table) if self._places is None else len(self._places)

    def take(self, rows: np.ndarray) -> pa.Array:
        """Rows by their numbers, of at most 2 GB in all."""
        places = rows if self._places is None else self._places[rows]
        order = np.argsort(places, kind="stable")
        ordered = places[order]
        cuts = np.searchsorted(ordered, self._ends)
        parts = [
            self._chunks[number].take(pa.array(ordered[cuts[number] : cuts[number + 1]] - self._ends[number]))
            for number in np.flatnonzero(np.diff(cuts))
        ]
        return pa.concat_arrays(parts or [pa.array([], self._table.type)]).take(pa.array(np.argsort(order)))

    def values(self) -> pa.ChunkedArray:
        """All rows."""
        if self._places is None:
            return self._table
        parts = [self.take(np.arange(low, min(low + ROWS, len(self)))) for low in range(0, len(self), ROWS)]
        return pa.chunked_array(parts, self._table.type)

    def numbers(self) -> np.ndarray:
        """All rows as float64, NaN for those that are missing.

        Raises:
            ValueError: a row is no number.
        """
        try:
            return self.values().cast("float64").to_numpy()
        except (ValueError, NotImplementedError) as error:  # Arrow's errors are subclasses of them
            raise ValueError(f"The column {self.name} does not hold numbers ({error}).") from error

    def missing(self) -> np.ndarray:
        """Which rows are None."""
        return self._of_rows(self._table.is_null())

    def blank(self) -> np.ndarray:
        """Which rows are texts of nothing but spaces."""
        if not self.is_text:
            return np.zeros(len(self), bool)
        bare = pc.or_(pc.utf8_is_space(self._table), pc.equal(pc.binary_length(self._table), 0))
        return self._of_rows(bare.fill_null(False))

    def sizes(self) -> np.ndarray:
        """Bytes of each row; of rows that are no texts, their mean."""
        if self.is_text:
            return self._of_rows(pc.binary_length(self._table).fill_null(0)).astype(np.int64)
        return np.full(len(self), self._table.nbytes // max(1, len(self._table)))

    def _of_rows(self, values: pa.ChunkedArray) -> np.ndarray:
        return values.to_numpy() if self._places is None else values.to_numpy()[self._places]
