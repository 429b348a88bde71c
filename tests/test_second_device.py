"""On a device other than the CPU: same losses, gradients, scores. A GPU is played by a device in CPU memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from on_second_device import CASES, run

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came out there: in a process of its own, as the device is known to all of PyTorch."""
    path = tmp_path_factory.mktemp("second_device") / "results.pt"
    script = f"import second_device, on_second_device; on_second_device.main({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", script], cwd=HERE, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-6000:]
    return torch.load(path)


@pytest.mark.parametrize("name", CASES)
def test_labels_on_the_models_device_do_not_meet_masks_on_the_cpu(results: dict[str, Any], name: str) -> None:
    """Every loss broke at the first step on a GPU: the trainer moves labels there, and a mask was on the CPU."""
    found = results[name]
    assert not isinstance(found, str), found[-3000:]
    expected = run(name, "cpu")
    assert found.keys() == expected.keys()
    for part, value in expected.items():
        torch.testing.assert_close(
            found[part], value, rtol=1e-6, atol=1e-9, msg=lambda text, part=part: f"{part}: {text}"
        )
