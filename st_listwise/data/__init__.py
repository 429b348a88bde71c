"""Any source → a ``datasets.Dataset`` of ``query``, ``docs`` and ``labels``."""

from __future__ import annotations

from st_listwise.data.grouping import group_by_query
from st_listwise.data.letor import read_letor

__all__ = ["group_by_query", "read_letor"]
