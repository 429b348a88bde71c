"""Two processes give what one gives: DDP by hand, DDP and FSDP2 in the real trainer; and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder
from tiny_models import tiny_bert
from torch import nn
from two_processes import BUILDERS, BY_HAND, NOTHING_TO_LEARN, PAIRS, ROWS, SHARDED, TRAINED, step, trainer

import st_listwise
from st_listwise import processes, sharded

SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One launch for all cases, as starting processes takes longer than what they do: a folder, and what was printed.

    It is the README's for two GPUs. On a CPU `accelerate launch --cpu` starts one process, however many are asked for.
    """
    folder = tmp_path_factory.mktemp("processes")
    port = f"--main_process_port={20000 + os.getpid() % 20000}"
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", port]
    run = subprocess.run([*launcher, str(SCRIPT), str(folder)], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-6000:]
    return folder, run.stdout


@pytest.fixture(scope="module")
def results(launched: tuple[Path, str]) -> list[dict[str, Any]]:
    """What each process found."""
    return [torch.load(launched[0] / f"{rank}.pt") for rank in range(2)]


@cache
def gradient_of_one_process(kind: str, nothing: bool) -> list[torch.Tensor]:
    return step(BUILDERS[kind]().double(), NOTHING_TO_LEARN if nothing else ROWS, slice(0, 4), False)


@pytest.mark.parametrize(("kind", "broadcast_buffers", "recompute", "find_unused", "nothing"), BY_HAND)
def test_two_processes_give_the_gradient_of_one(
    results: list[dict[str, Any]],
    kind: str,
    broadcast_buffers: bool,
    recompute: bool,
    find_unused: bool,
    nothing: bool,
) -> None:
    expected = gradient_of_one_process(kind, nothing)
    for result in results:
        gradients, reductions = result["by hand"][kind, broadcast_buffers, recompute, find_unused, nothing]
        torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-12)
        assert reductions == 1, "one all-reduce a step, however many mini-batches"


@cache
def one_process(kind: str, nothing: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Weights after the same steps in one process, and scores."""
    run = trainer(kind, {}, False, nothing, world=1)
    run.train()
    weights = [parameter.detach() for parameter in run.model.parameters()]
    start = [parameter.detach() for parameter in BUILDERS[kind]().double().parameters()]
    assert max(float((now - then).abs().max()) for now, then in zip(weights, start)) > 1e-3
    return weights, torch.tensor(run.model.predict(PAIRS))


@pytest.mark.parametrize("name", TRAINED)
def test_the_trainer_in_two_processes_takes_the_steps_of_one(results: list[dict[str, Any]], name: str) -> None:
    kind, _, _, nothing = TRAINED[name]
    expected, _ = one_process(kind, nothing)
    for result in results:
        weights, reductions = result["trained"][name]
        torch.testing.assert_close(weights, expected, rtol=1e-9, atol=1e-10)
        assert reductions == 2, "one all-reduce a step, of whatever micro-batches and mini-batches"


@pytest.mark.parametrize("name", SHARDED)
def test_fsdp2_in_two_processes_takes_the_steps_of_one(results: list[dict[str, Any]], name: str) -> None:
    """Each process has other lists, and other numbers of mini-batches: without agreement it would hang."""
    kind, _, _, nothing = SHARDED[name]
    expected, expected_scores = one_process(kind, nothing)
    for result in results:
        weights, scores, _ = result["sharded"][name]
        torch.testing.assert_close(weights, expected, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(scores, expected_scores, rtol=1e-6, atol=1e-6)
    *_, gathered = results[0]["sharded"][name]
    torch.testing.assert_close(gathered, expected_scores, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("an option", "alpha is 1.0 in process 0 and 2.0 in 1"),
        ("the loss", "loss is st_listwise.losses.plackett_luce.ListMLELoss in process 0 and "),
        ("a weight", "losses.rank.weight is 0.5 in process 0 and 1.5 in 1"),
        ("the longest input", "max_seq_length is 64 in process 0 and 128 in 1"),
    ],
)
def test_processes_that_disagree_are_both_told_what_on(results: list[dict[str, Any]], what: str, message: str) -> None:
    for result in results:
        (complaint,) = result["disagreements"][what]
        assert complaint.startswith(f"The processes disagree: {message}")
        assert complaint.endswith("Start all of them with the same script and arguments.")


def test_mini_batches_may_differ_between_processes_and_so_may_the_data_set_of_a_step(
    results: list[dict[str, Any]],
) -> None:
    """With several data sets accelerate gives each process a batch of its own: one of another loss at times."""
    for result in results:
        assert result["disagreements"]["mini-batches"] == [""]
        assert result["disagreements"]["data sets"] == ["", ""]


def test_a_process_that_does_not_come_is_named_and_told_when_it_comes(results: list[dict[str, Any]]) -> None:
    second, first = ("Process 1 did not come to its first step", "Process 0 did not come to its first step")
    assert [complaint[: len(second)] for complaint in results[0]["late"]] == [second]
    assert [complaint[: len(second)] for complaint in results[1]["late"]] == [second, first]


@pytest.mark.parametrize("recompute", [False, True])
def test_an_infinite_score_of_an_initial_ranking_is_no_nan_where_a_process_repeats_a_mini_batch(
    recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs of repeated mini-batches were added at weight zero, scores of initial rankings with them."""
    monkeypatch.setattr(sharded, "agreed_count", lambda count, device: count + 1)
    weight = nn.Parameter(torch.ones(2))

    def stage(features: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": features["x"] * weight, "initial_scores": features["initial_scores"]}

    batch = {"x": torch.ones(1, 2), "initial_scores": torch.tensor([[-torch.inf]])}
    (part,) = sharded.run_together(stage, [batch], torch.device("cpu"), recompute=recompute)
    assert part["initial_scores"].tolist() == [[-torch.inf]]
    part["sentence_embedding"].sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.0, 1.0]


def test_sharded_recomputing_keeps_the_random_state_of_the_models_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps the states of the devices that tensors among the inputs are on; the only one was on the CPU."""
    devices: list[torch.device] = []
    monkeypatch.setattr(sharded, "checkpoint", lambda run, anchor, **options: devices.append(anchor.device) or ())
    sharded.recomputed(lambda inputs: {}, torch.device("meta"))
    assert devices == [torch.device("meta")]


class DeepSpeedEngine(nn.Module):
    """Stands for DeepSpeed's, which goes by this name and module."""

    __module__ = "deepspeed.runtime.engine"

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


REFUSED = r"do not run in {} .*--multi_gpu.*recompute=True.*--use_fsdp --fsdp_version 2"


def test_deepspeed_is_refused_with_what_to_use() -> None:
    model = tiny_bert()
    loss = st_listwise.ListMLELoss(model)
    loss.model = DeepSpeedEngine(model)  # type: ignore[assignment]
    with pytest.raises(ValueError, match=REFUSED.format("DeepSpeed")):
        loss([ROWS["query"][:1], ROWS["docs"][:1]], [torch.tensor([1, 0])])


def test_fsdp1_is_refused_with_what_to_use(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert re.search(REFUSED.format("FSDP1"), result["fsdp1"])


def test_data_parallel_trains_the_same_on_one_gpu_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """What the trainer makes of several GPUs when the script is started without a launcher."""
    expected = step(tiny_bert(), ROWS, slice(0, 4), False)
    model = tiny_bert()
    wrapper = nn.DataParallel(model)
    assert processes.unwrap(wrapper) is model
    loss = st_listwise.ListMLELoss(model, mini_batch_size=2)
    loss.model = wrapper  # type: ignore[assignment]
    for _ in range(2):
        model.zero_grad()
        loss([ROWS["query"][:4], ROWS["docs"][:4]], [torch.tensor(row) for row in ROWS["labels"][:4]]).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    torch.testing.assert_close(gradients, expected)
    assert caplog.text.count("only its first GPU is used") == 1


def test_the_example_in_two_processes_measures_writes_and_prints_once(
    launched: tuple[Path, str], results: list[dict[str, Any]]
) -> None:
    folder, printed = launched
    assert [result["example"] for result in results] == [0, 0]
    assert printed.count("before ") == printed.count("Model, card and figures are in") == 1
    metrics = json.loads((folder / "example" / "metrics.json").read_text())
    assert (metrics["processes"], metrics["batch_size"], metrics["steps"]) == (2, 6, 2)
    assert set(metrics["metrics"]["held-out"]) == {"BM25", "before", "after"}
    CrossEncoder(str(folder / "example" / "final"))
