"""A run that was killed, or met a full disk, goes on as if nothing had happened."""

from __future__ import annotations

import errno
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from separate_runs import SAVE_STEPS, STEPS, finish, run, start
from tiny_models import tiny_set
from transformers.trainer_utils import get_last_checkpoint

from st_listwise.checkpoints import last_complete_checkpoint
from st_listwise.modules.set_rank import SetRank


@pytest.fixture(scope="module", params=["pairs", "sets"])
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    folder = tmp_path_factory.mktemp(f"whole-{request.param}")
    assert finish(start(run, request.param, folder)) == 0
    return request.param, torch.load(folder / "result.pt")


def assert_goes_on(folder: Path, uninterrupted: tuple[str, Any], checkpoint: str | None) -> None:
    kind, expected = uninterrupted
    assert finish(start(run, kind, folder, checkpoint)) == 0
    result = torch.load(folder / "result.pt")
    assert result["losses"] == expected["losses"]
    assert len(result["losses"]) == STEPS
    assert result["weights"].keys() == expected["weights"].keys()
    for name, weight in result["weights"].items():
        assert torch.equal(weight, expected["weights"][name]), name


def test_a_run_killed_at_a_random_step_ends_with_the_same_curve_and_weights(
    tmp_path: Path, uninterrupted: tuple[str, Any]
) -> None:
    step = random.Random(uninterrupted[0]).randrange(SAVE_STEPS + 1, STEPS)
    assert finish(start(run, uninterrupted[0], tmp_path, None, ("killed", step, True))) == -signal.SIGKILL
    checkpoint = last_complete_checkpoint(tmp_path)
    assert checkpoint == str(tmp_path / f"checkpoint-{(step - 1) // SAVE_STEPS * SAVE_STEPS}")
    assert_goes_on(tmp_path, uninterrupted, checkpoint)


@pytest.mark.parametrize(("file", "killed"), [("weights", True), ("state", True), ("optimizer", False)])
def test_a_run_that_dies_while_it_saves_goes_on_from_the_checkpoint_before(
    tmp_path: Path, uninterrupted: tuple[str, Any], file: str, killed: bool
) -> None:
    """By a kill, or by a disk that is full; the trainer's own choice would be the checkpoint that is half there."""
    code = finish(start(run, uninterrupted[0], tmp_path, None, (file, 15, killed)))
    assert code == (-signal.SIGXFSZ if killed else 1)
    assert get_last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-15")
    checkpoint = last_complete_checkpoint(tmp_path)
    assert checkpoint == str(tmp_path / "checkpoint-10")
    assert_goes_on(tmp_path, uninterrupted, checkpoint)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Three complete ones: the newest has the largest number, not the last name."""
    for step in (8, 9, 10):
        folder = tmp_path / f"checkpoint-{step}"
        (folder / "1_Head").mkdir(parents=True)
        save_file({"weight": torch.zeros(8)}, folder / "1_Head" / "model.safetensors")
        torch.save({"step": step}, folder / "optimizer.pt")
        (folder / "trainer_state.json").write_text('{"global_step": 1}')
    return tmp_path


def test_the_newest_checkpoint_is_that_of_the_most_steps(checkpoints: Path) -> None:
    (checkpoints / "checkpoint-11").touch()
    (checkpoints / "checkpoint-best").mkdir()
    assert last_complete_checkpoint(checkpoints) == str(checkpoints / "checkpoint-10")


def test_there_is_none_in_a_new_folder(tmp_path: Path) -> None:
    assert last_complete_checkpoint(tmp_path) is None
    assert last_complete_checkpoint(tmp_path / "not there") is None


@pytest.mark.parametrize("name", ["1_Head/model.safetensors", "optimizer.pt", "trainer_state.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_files_that_are_cut_short_are_found_and_named(
    checkpoints: Path, caplog: pytest.LogCaptureFixture, name: str, share: float
) -> None:
    """As a run leaves them that was resumed from further back, and killed while it wrote the same folder again."""
    for step in (10, 9):
        path = checkpoints / f"checkpoint-{step}" / name
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert last_complete_checkpoint(checkpoints) == str(checkpoints / "checkpoint-8")
    assert f"checkpoint-10 is not complete ({name} is cut short)" in caplog.text
    assert f"checkpoint-9 is not complete ({name} is cut short)" in caplog.text


@pytest.mark.parametrize("what", ["save_config", "save_torch_weights"])
def test_a_full_disk_leaves_the_set_layers_that_lay_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    old, new = tiny_set(seed=1), tiny_set(seed=2)
    old.save_pretrained(str(tmp_path))
    folder = tmp_path / "2_SetRank"

    def full(self: Any, output_path: str, *arguments: Any, **options: Any) -> None:
        (Path(output_path) / "config.json").write_text("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SetRank, what, full)
    with pytest.raises(OSError, match="No space left"):
        new[2].save(str(folder))
    monkeypatch.undo()
    loaded = SetRank.load(str(tmp_path), subfolder="2_SetRank")
    for name, weight in old[2].state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
