"""Any source → a ``datasets.Dataset`` of ``query``, ``docs`` and ``labels``."""

from __future__ import annotations

from st_listwise.data.letor import read_letor

__all__ = ["read_letor"]
