"""Documents and queries by identifier: JSON lines, tab-separated lines, a mapping or a data set → texts."""

from __future__ import annotations

import json
import mmap
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from datasets.utils import tqdm

from st_listwise.data.files import excerpt, numbered_lines
from st_listwise.data.tally import Tally

#: What texts can be read from. Not an iterator: what is read once cannot be told from other input.
Texts: TypeAlias = str | os.PathLike[str] | Mapping[Any, str | None] | Dataset | Sequence[tuple[Any, str | None]]
#: Names of identifiers, the first that a record has counts.
IDS = ("_id", "id", "doc_id", "query_id")
#: Identifiers that are turned into Arrow at a time.
CHUNK = 100_000


class Text(NamedTuple):
    """One record, and where it stands."""

    id: str
    text: str
    place: int


class Place(NamedTuple):
    """How places of a source are written: ``docs.jsonl, line 3``."""

    source: str
    unit: str

    def at(self, number: int) -> str:
        return f"{self.source}, {self.unit} {number}"


class Corpus:
    """Texts on disk, in one piece, and their identifiers in memory: memory grows by some bytes a document.

    Args:
        source: What :func:`read_texts` takes.
        path: Where the texts are put.
        tally: Takes the faults.

    Raises:
        ValueError: there is no document; in strict mode, any fault.
    """

    def __init__(self, source: Texts, path: Path, tally: Tally) -> None:
        where = place_of(source, "corpus")
        offsets, places = array("q", [0]), array("q")
        chunks: list[pa.Array] = []
        ids: list[str] = []
        with path.open("wb") as file:
            for record in read_texts(source, "corpus", tally):
                offsets.append(offsets[-1] + file.write(record.text.encode()))
                places.append(record.place)
                ids.append(record.id)
                if len(ids) == CHUNK:
                    chunks.append(pa.array(ids, pa.string()))
                    ids = []
        self.ids = pa.concat_arrays([*chunks, pa.array(ids, pa.string())])
        if not len(self.ids):
            raise ValueError(f"{where.source} holds no documents with text. {tally.sentence()}")
        self._count_duplicates(np.frombuffer(places, np.int64), where, tally)
        self.lengths = np.diff(np.frombuffer(offsets, np.int64))
        self._open(path)

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which maps the texts itself."""
        return {"ids": self.ids, "lengths": self.lengths, "_path": self._path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.ids, self.lengths = state["ids"], state["lengths"]
        self._open(state["_path"])

    def _open(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        offsets = pa.py_buffer(np.append(0, np.cumsum(self.lengths)))
        self._texts = pa.LargeStringArray.from_buffers(len(self.ids), offsets, pa.py_buffer(self._map))

    def rows(self, ids: pa.Array) -> np.ndarray:
        """Place of each identifier, -1 for those that are not there; of equal ones the first."""
        return pc.index_in(ids, value_set=self.ids).fill_null(-1).to_numpy(zero_copy_only=False)

    def take(self, rows: np.ndarray) -> pa.Array:
        """Texts of places, of at most 2 GB in all."""
        texts = self._texts.take(pa.array(rows)).cast(pa.string())
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)  # pages that were read count as memory of the process otherwise
        return texts

    def _count_duplicates(self, places: np.ndarray, where: Place, tally: Tally) -> None:
        codes = self.ids.dictionary_encode().indices.to_numpy()  # numbered as they are met
        again = np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1) == 0)
        if len(again):
            id = self.ids[int(again[0])].as_py()
            place = f"{where.at(int(places[again[0]]))}: {id!r} was there before; the first one counts"
            tally.fault("documents of a known id", place, len(again))


def read_queries(source: Texts, tally: Tally) -> dict[str, str]:
    """Identifier → text of a query.

    Raises:
        ValueError: there is no query; in strict mode, any fault.
    """
    where = place_of(source, "queries")
    queries: dict[str, str] = {}
    for record in read_texts(source, "queries", tally):
        if record.id in queries:
            place = f"{where.at(record.place)}: {record.id!r} was there before; the first one counts"
            tally.fault("queries of a known id", place)
        queries.setdefault(record.id, record.text)
    if not queries:
        raise ValueError(f"{where.source} holds no queries with text. {tally.sentence()}")
    return queries


def place_of(source: Texts, name: str) -> Place:
    """How places in a source are named."""
    if isinstance(source, (str, os.PathLike)):
        return Place(str(source), "line")
    return Place(name, "row")


def read_texts(source: Texts, name: str, tally: Tally) -> Iterator[Text]:
    """Records with an identifier and a text that is not blank.

    Args:
        source: A file, plain or gzip, of JSON objects or of ``id<TAB>text``, one a line; a mapping from identifiers to
            texts; pairs of both; a data set. None is no text. Objects and rows have ``_id``, ``id``, ``doc_id`` or
            ``query_id``, and ``text``; a ``title`` goes before the text.
        name: What the source is called where it is no file.
        tally: Takes the faults.
    """
    where = place_of(source, name)
    for number, raw in _numbered(source, name, tally):
        try:
            id, text = _parsed(raw)
            f"{id}{text}".encode()  # half a surrogate pair, as JSON may have it, is no text that can be written
        except ValueError as error:
            tally.fault(f"{name} lines that cannot be read", f"{where.at(number)}: {error}")
            continue
        if text.strip():
            yield Text(id, text, number)
        else:
            tally.fault(f"{name} lines without text", f"{where.at(number)}: {id!r}")


def _numbered(source: Texts, name: str, tally: Tally) -> Iterable[tuple[int, Any]]:
    if isinstance(source, (str, os.PathLike)):
        return numbered_lines(source, tally)
    rows = source.items() if isinstance(source, Mapping) else source
    return enumerate(tqdm(rows, desc=name), 1)


def _parsed(raw: Any) -> tuple[str, str]:
    """Identifier and text of a line, a row or a pair; ValueError says what is wrong with it."""
    if isinstance(raw, tuple) and len(raw) == 2:
        id, text = raw
        if not isinstance(text, str | None):
            raise ValueError(f"the text of {id!r} is no string: {excerpt(repr(text))}")
        return str(id), text or ""
    if isinstance(raw, str):
        if not raw.lstrip().startswith("{"):
            id, tab, text = raw.partition("\t")
            if not tab:
                raise ValueError(f"neither a JSON object nor id<TAB>text: {excerpt(raw)}")
            return id.strip(), text
        raw = json.loads(raw)
    if not isinstance(raw, Mapping):
        raise ValueError(f"neither a dict with an id and a text nor a pair (id, text): {excerpt(repr(raw))}")
    own = next((raw[key] for key in IDS if raw.get(key) is not None), None)
    if own is None:
        raise ValueError(f"no id under {', '.join(IDS)}: {excerpt(str(raw))}")
    return str(own), f"{raw.get('title') or ''} {raw.get('text') or ''}".strip()
