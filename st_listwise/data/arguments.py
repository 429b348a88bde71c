"""What readers are given, checked before they read: data sets, and options that count."""

from __future__ import annotations

from typing import Any

from datasets import Dataset


def check_dataset(name: str, rows: Any) -> None:
    """ValueError unless it is one data set: not several of them, nor rows, nor a stream."""
    if not isinstance(rows, Dataset):
        raise ValueError(
            f"{name} is {type(rows).__name__}, expected a datasets.Dataset: one of a DatasetDict, such as "
            'data["train"], or Dataset.from_list(rows).'
        )


def check_count(name: str, value: Any) -> None:
    """ValueError unless ``value`` is None or a whole number of at least 1."""
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ValueError(f"{name}={value!r} must be a whole number of at least 1, or None.")
