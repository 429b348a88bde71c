"""Real data for tests that need it, and a quiet machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

#: Importing it, be it for doctests, changes PyTorch for the whole process.
collect_ignore = ["second_device.py"]
SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets beside the checkout; tests on it are skipped where it is absent."""
    if not SHARED.exists():
        pytest.skip("needs the folder shared/data beside the checkout, with real data that may not be redistributed")
    return SHARED


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers keep what they have converted in a folder of this test alone."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
