"""Two processes give the gradient of one: DistributedDataParallel on gloo, as the trainer wraps the model."""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tiny_models import tiny_bert, tiny_set
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import st_listwise

QUERIES = ["what is a bear", "capital of france", "how fast", "why"]
DOCS = [
    ["an animal", "a planet"],
    ["paris is the capital", "rome", "berlin is big and far away", "x", "lyon", "lille", "nice"],
    ["fast as light", "slow"],
    ["because", "no", "yes it is so"],
]
LABELS = [[1.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0], [0.0, 1.0], [1.0, 0.0, 2.0]]
NOTHING_TO_LEARN = [*LABELS[:2], [1.0, 1.0], [0.0, 0.0, 0.0]]
BUILDERS = {"pairs": tiny_bert, "sets": tiny_set}
CASES = list(
    itertools.product(
        BUILDERS, [True, False], [True, False], ["all teach", "one process learns nothing"], [True, False]
    )
)


def _step(model: Any, labels: list[list[float]], lists: slice, recompute: bool, wrapper: Any = None) -> list[Tensor]:
    loss = st_listwise.ListMLELoss(model, mini_batch_size=2, recompute=recompute)
    loss.model = wrapper or model
    targets = [torch.tensor(row) for row in labels[lists]]
    loss([QUERIES[lists], DOCS[lists]], targets).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return gradients


def _process(rank: int, port: int, folder: str) -> None:
    """Both processes run all cases; the first list of the first process is the longest, with most mini-batches."""
    torch.set_num_threads(1)
    tiny_bert()  # saves its folder before there are processes: with them, only the first one would write
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    results = {}
    for kind, broadcast_buffers, recompute, what, find_unused in CASES:
        model = BUILDERS[kind]().double()
        wrapper = DistributedDataParallel(
            model, broadcast_buffers=broadcast_buffers, find_unused_parameters=find_unused
        )
        wrapper.preprocess = model.preprocess  # as the trainer does
        reductions: list[int] = []
        wrapper.register_comm_hook(reductions, _count_reductions)
        labels = LABELS if what == "all teach" else NOTHING_TO_LEARN
        mine = slice(0, 2) if rank == 0 else slice(2, 4)
        gradients = _step(model, labels, mine, recompute, wrapper)
        results[kind, broadcast_buffers, recompute, what, find_unused] = (gradients, len(reductions))
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def _count_reductions(reductions, bucket):  # type: ignore[no-untyped-def]  # torch checks for the types themselves
    reductions.append(bucket.index())
    work = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
    return work.then(lambda future: future.value()[0])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    folder = tmp_path_factory.mktemp("processes")
    port = 20000 + os.getpid() % 20000
    torch.multiprocessing.spawn(_process, (port, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize(("kind", "broadcast_buffers", "recompute", "what", "find_unused"), CASES)
def test_two_processes_give_the_gradient_of_one(
    results: list[dict[Any, Any]], kind: str, broadcast_buffers: bool, recompute: bool, what: str, find_unused: bool
) -> None:
    labels = LABELS if what == "all teach" else NOTHING_TO_LEARN
    expected = _step(BUILDERS[kind]().double(), labels, slice(0, 4), False)
    for result in results:
        gradients, reductions = result[kind, broadcast_buffers, recompute, what, find_unused]
        torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-12)
        assert reductions == 1, "one all-reduce a step, however many mini-batches"
