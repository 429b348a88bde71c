"""What a reader kept and left out: counted, logged in one sentence, and carried by the data set that it returns."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from datasets import Dataset

logger = logging.getLogger(__name__)


class Tally:
    """Counts of a reader, and the place at which each kind of fault was met first.

    Args:
        strict: Raise the first fault of each kind that is met, in place of counting it.
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.counts: dict[str, int] = {}
        self.first: dict[str, str] = {}

    def count(self, what: str, number: int = 1) -> None:
        """Count what is no fault; a count of 0 is shown, too."""
        self.counts[what] = self.counts.get(what, 0) + int(number)

    def count_lists(self, kept: int, documents: int, dropped: int = 0) -> None:
        """Count what a reader gives: lists and their documents, and the lists that it dropped for their one label."""
        self.count("lists", kept)
        self.count("documents", documents)
        if dropped:
            self.count("lists of one label dropped", dropped)

    def fault(self, what: str, place: str, number: int = 1) -> None:
        """Count what is wrong with the input.

        Args:
            what: The kind, in the plural: a key of the counts.
            place: File, line and what stands there.
            number: How many there are; 0 for none.

        Raises:
            ValueError: in strict mode.
        """
        if not number:
            return
        if self.strict:
            raise ValueError(f"{place} (strict=True makes this an error; otherwise {what} are counted in the log).")
        self.count(what, number)
        self.first.setdefault(what, place)

    def add(self, other: Tally) -> None:
        """Count what another one, of a later part of the same input, has counted."""
        for what, number in other.counts.items():
            self.count(what, number)
            if what in other.first:
                self.first.setdefault(what, other.first[what])

    def sentence(self) -> str:
        """All counts, and where faults begin.

        >>> tally = Tally()
        >>> tally.count("lists", 1200)
        >>> tally.fault("run lines that cannot be read", "a.run, line 3: 5 columns", 2)
        >>> tally.sentence()
        '1,200 lists, 2 run lines that cannot be read (first: a.run, line 3: 5 columns).'
        """
        parts = [
            f"{number:,} {what}" + (f" (first: {self.first[what]})" if what in self.first else "")
            for what, number in self.counts.items()
        ]
        return ", ".join(parts) + "."

    def log(self, source: str) -> None:
        """One sentence: a warning where there are faults."""
        logger.log(logging.WARNING if self.first else logging.INFO, f"{source}: {self.sentence()}")

    def dumps(self) -> str:
        """As JSON, for the description of a data set."""
        return json.dumps({"counts": self.counts, "first": self.first}, ensure_ascii=False)

    @classmethod
    def loads(cls, text: str) -> Tally:
        """From what :meth:`dumps` gave."""
        tally = cls()
        content = json.loads(text)
        tally.counts, tally.first = content["counts"], content["first"]
        return tally

    def attach(self, dataset: Dataset) -> Dataset:
        """Leave the counts in the data set's description, where :func:`counts` finds them."""
        dataset.info.description = self.dumps()
        return dataset

    @classmethod
    def of(cls, dataset: Dataset) -> Tally:
        """What :meth:`attach` left."""
        return cls.loads(dataset.info.description)


def counts(dataset: Dataset) -> dict[str, int]:
    """What the reader of a data set kept and left out: ``{"lists": 225, "documents": 11250, …}``.

    The counts stay with the data set through ``select``, ``map`` and ``save_to_disk``; they tell what was read.

    Raises:
        ValueError: the data set does not come from a reader of this package.
    """
    try:
        return dict(Tally.of(dataset).counts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            "The data set carries no counts: it does not come from a reader of st_listwise.data."
        ) from error


def is_ranking(labels: Sequence[float]) -> bool:
    """Whether labels are 1 … n, each once, for n of 3 or more.

    >>> is_ranking([2, 1, 3]), is_ranking([2, 1]), is_ranking([1, 1, 0])
    (True, False, False)
    """
    return len(labels) > 2 and sorted(labels) == list(range(1, len(labels) + 1))
