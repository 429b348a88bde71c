"""Any source → a ``datasets.Dataset`` of ``query``, ``docs`` and ``labels``."""

from __future__ import annotations

from st_listwise.data.grouping import group_by_query
from st_listwise.data.hard_negatives import from_hard_negatives
from st_listwise.data.letor import read_letor
from st_listwise.data.sampling import EpochSampler
from st_listwise.data.tally import counts
from st_listwise.data.trec import read_teacher_run, read_trec, write_run

__all__ = [
    "EpochSampler",
    "counts",
    "from_hard_negatives",
    "group_by_query",
    "read_letor",
    "read_teacher_run",
    "read_trec",
    "write_run",
]
