"""Run by test_processes.py under `accelerate launch`, two processes on gloo: every case on both, results to files."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from sentence_transformers import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.cross_encoder.evaluation import CrossEncoderRerankingEvaluator
from tiny_models import _bert_folder, tiny_bert, tiny_set
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback

import st_listwise
from st_listwise import processes

#: Two steps of four lists. The first process has the longest list, and with it most mini-batches.
ROWS: dict[str, list[Any]] = {
    "query": ["what is a bear", "capital of france", "how fast", "why", "who", "where", "when", "how"],
    "docs": [
        ["an animal", "a planet"],
        ["paris is the capital", "rome", "berlin is big and far away", "x", "lyon", "lille", "nice"],
        ["fast as light", "slow"],
        ["because", "no", "yes it is so"],
        ["me", "you", "they"],
        ["here", "over there"],
        ["now", "never", "then", "at noon", "in a year or two"],
        ["so", "thus"],
    ],
    "labels": [[1, 0], [1, 0, 0, 0, 0, 2, 0], [0, 1], [1, 0, 2], [0, 1, 0], [1, 0], [3, 2, 0, 0, 1], [0, 1]],
}
#: The lists of the second process have one label each.
NOTHING_TO_LEARN = ROWS | {"labels": [*ROWS["labels"][:2], [1, 1], [0, 0, 0], *ROWS["labels"][4:6], [2] * 5, [0, 0]]}
SAMPLES = [{"query": q, "positive": docs[:1], "negative": docs[1:]} for q, docs in zip(ROWS["query"], ROWS["docs"])]
PAIRS = [(query, doc) for query, docs in zip(ROWS["query"], ROWS["docs"]) for doc in docs]
BUILDERS: dict[str, Callable[..., Any]] = {"pairs": tiny_bert, "sets": tiny_set}

#: kind of model, broadcast_buffers, recompute, find_unused_parameters, whether the second process learns nothing
BY_HAND = list(itertools.product(BUILDERS, [True, False], [True, False], [True, False], [True, False]))
COMPILED = {"torch_compile": True, "torch_compile_backend": "eager"}
#: kind of model, options of the trainer, recompute, whether the second process learns nothing
TRAINED: dict[str, tuple[str, dict[str, Any], bool, bool]] = {
    "one batch a step": ("pairs", {}, False, False),
    "recompute": ("pairs", {}, True, False),
    "one process learns nothing": ("pairs", {"ddp_broadcast_buffers": True}, True, True),
    "accumulation": ("pairs", {"gradient_accumulation_steps": 2, "ddp_broadcast_buffers": True}, False, False),
    "accumulation, recompute": ("pairs", {"gradient_accumulation_steps": 2}, True, True),
    "sets, accumulation, recompute": ("sets", {"gradient_accumulation_steps": 2}, True, False),
    "compiled": ("pairs", {**COMPILED, "gradient_accumulation_steps": 2}, False, False),
    "sets, compiled, recompute": ("sets", COMPILED, True, True),
}
#: The same, FSDP2 in place of DDP.
SHARDED: dict[str, tuple[str, dict[str, Any], bool, bool]] = {
    "one batch a step": ("pairs", {}, False, False),
    "recompute": ("pairs", {}, True, True),
    "accumulation, recompute": ("pairs", {"gradient_accumulation_steps": 2}, True, False),
    "sets": ("sets", {}, False, True),
    "sets, recompute": ("sets", {"gradient_accumulation_steps": 2}, True, False),
}


class InOrder(DefaultBatchSampler):
    """Batches as the rows stand, so that it is known which process learns nothing."""

    def __init__(self, dataset: Dataset, batch_size: int, drop_last: bool, **options: Any) -> None:
        super().__init__(SequentialSampler(dataset), batch_size=batch_size, drop_last=drop_last, **options)


def step(model: Any, rows: dict[str, list[Any]], lists: slice, recompute: bool, wrapper: Any = None) -> list[Tensor]:
    """Gradients of one batch, by hand."""
    loss = st_listwise.ListMLELoss(model, mini_batch_size=2, recompute=recompute)
    loss.model = wrapper or model
    labels = [torch.tensor(row) for row in rows["labels"][lists]]
    loss([rows["query"][lists], rows["docs"][lists]], labels).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return gradients


def trainer(kind: str, options: dict[str, Any], recompute: bool, nothing: bool, world: int) -> CrossEncoderTrainer:
    """Two steps of plain gradient descent on four lists each, in all processes and micro-batches together."""
    accumulation = options.get("gradient_accumulation_steps", 1)
    defaults: dict[str, Any] = {
        "output_dir": mkdtemp(),
        "max_steps": 2,
        "per_device_train_batch_size": 4 // world // accumulation,
        "batch_sampler": InOrder,
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "max_grad_norm": 0,
        "optim": "sgd",
        "ddp_broadcast_buffers": False,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    model = BUILDERS[kind]().double()
    loss = st_listwise.ListMLELoss(model, mini_batch_size=2, recompute=recompute)
    rows = Dataset.from_dict(NOTHING_TO_LEARN if nothing else ROWS)
    args = CrossEncoderTrainingArguments(**(defaults | options))
    if args.fsdp:  # accelerate shards on GPUs only: let the CPU pass for one, all else is its own and the trainer's
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    evaluator = CrossEncoderRerankingEvaluator(SAMPLES, show_progress_bar=False, write_csv=False)
    return CrossEncoderTrainer(model=model, args=args, train_dataset=rows, loss=loss, evaluator=evaluator)


def count_reductions(reductions, bucket):  # type: ignore[no-untyped-def]  # torch checks for the types themselves
    reductions.append(bucket.index())
    work = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
    return work.then(lambda future: future.value()[0])


class CountReductions(TrainerCallback):
    def __init__(self, trainer: CrossEncoderTrainer) -> None:
        self.trainer, self.reductions = trainer, []

    def on_train_begin(self, *arguments: Any, **options: Any) -> None:
        self.trainer.model_wrapped.register_comm_hook(self.reductions, count_reductions)


def wrapped(model: Any, **options: Any) -> DistributedDataParallel:
    wrapper = DistributedDataParallel(model, **options)
    wrapper.preprocess = model.preprocess  # as the trainer does
    return wrapper


def by_hand(rank: int) -> dict[Any, Any]:
    results = {}
    for case in BY_HAND:
        kind, broadcast_buffers, recompute, find_unused, nothing = case
        model = BUILDERS[kind]().double()
        wrapper = wrapped(model, broadcast_buffers=broadcast_buffers, find_unused_parameters=find_unused)
        reductions: list[int] = []
        wrapper.register_comm_hook(reductions, count_reductions)
        mine = slice(0, 2) if rank == 0 else slice(2, 4)
        gradients = step(model, NOTHING_TO_LEARN if nothing else ROWS, mine, recompute, wrapper)
        results[case] = (gradients, len(reductions))
    return results


def trained() -> dict[str, Any]:
    results = {}
    for name, case in TRAINED.items():
        run = trainer(*case, world=2)
        counter = CountReductions(run)
        run.add_callback(counter)
        run.train()
        assert isinstance(processes.uncompiled(run.model_wrapped), DistributedDataParallel)
        results[name] = ([p.detach() for p in run.model.parameters()], len(counter.reductions))
    return results


def sharded() -> dict[str, Any]:
    """With an evaluation between the steps, and the README's way to a model that is whole."""
    results = {}
    for name, (kind, options, recompute, nothing) in SHARDED.items():
        fsdp = {"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]}
        more = {"fsdp": True, "fsdp_config": fsdp, "eval_strategy": "steps", "eval_steps": 1}
        run = trainer(kind, options | more, recompute, nothing, world=2)
        run.train()
        assert sum(processes.is_sharded(module) for module in run.model.modules()) >= 3, "two layers, and the rest"
        scores = torch.tensor(run.model.predict(PAIRS))
        state = run.accelerator.get_state_dict(run.model)
        run.model.reshard()  # a forward pass alone leaves the outermost parameters whole
        weights = [parameter.full_tensor().detach() for parameter in run.model.parameters()]
        whole = BUILDERS[kind]().double()
        if dist.get_rank() == 0:
            whole.load_state_dict(state)
        results[name] = (weights, scores, torch.tensor(whole.predict(PAIRS)))
    return results


def example(folder: Path) -> int:
    """examples/ms_marco/train_listwise.py, on a CPU."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "ms_marco"))
    import train_listwise

    docs = {word: [f"a {word} here", "nothing"] for word in "abcdefgh"}
    rows = [{"query": f"find {word}", "docs": docs[word], "labels": [1, 0]} for word in "abcdefgh" * 4]
    path = Path(mkdtemp()) / "rows.jsonl"  # each process reads its own
    path.write_text("\n".join(map(json.dumps, rows)))
    return train_listwise.main(
        f"""--dataset {path} --model {_bert_folder(1)} --output_dir {folder}/example --max_steps 2 --eval_steps 1
        --save_steps 1 --per_device_train_batch_size 3 --use_cpu 1 --disable_tqdm 1""".split()
    )


def disagreements(rank: int) -> dict[str, list[str]]:
    """What each process says to losses that differ, or that it finds no fault with."""
    cases: dict[str, Callable[[Any], list[Any]]] = {
        "an option": lambda model: [st_listwise.ADRMSELoss(model, alpha=1.0 + rank)],
        "the loss": lambda model: [[st_listwise.ListMLELoss, st_listwise.ListNetLoss][rank](model)],
        "a weight": lambda model: [
            st_listwise.CombinedLoss({"rank": (st_listwise.ListMLELoss(model), 0.5 + rank)}, mini_batch_size=2)
        ],
        "the longest input": lambda model: [st_listwise.ListMLELoss(shortened(model, 64 * (1 + rank)))],
        "mini-batches": lambda model: [
            st_listwise.ListMLELoss(model, mini_batch_size=1 + rank, recompute=[False, "auto"][rank])
        ],
        "data sets": lambda model: [st_listwise.ListMLELoss(model), st_listwise.ListNetLoss(model)][:: 1 - 2 * rank],
    }
    return {name: [complaint(loss) for loss in in_wrapper(build(tiny_bert()))] for name, build in cases.items()}


def late(rank: int) -> list[str]:
    """The second process does not come for the first loss, but later; then the first one does not."""
    processes.TIMEOUT = processes.FAREWELL = timedelta(seconds=1)
    complaints = []
    for absent in (1, 0):
        (loss,) = in_wrapper([st_listwise.ListMLELoss(tiny_bert())])
        complaints += [complaint(loss)] if rank != absent else []
        dist.barrier()
        complaints += [complaint(loss)] if rank == absent == 1 else []
    return complaints


def fsdp1() -> str:
    model = tiny_bert()
    loss: Any = st_listwise.ListMLELoss(model)
    loss.model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    return complaint(loss)


def shortened(model: Any, max_seq_length: int) -> Any:
    model.max_seq_length = max_seq_length
    return model


def in_wrapper(losses: list[Any]) -> list[Any]:
    wrapper = wrapped(losses[0].model)
    for loss in losses:
        loss.model = wrapper
    return losses


def complaint(loss: Any) -> str:
    try:
        loss([ROWS["query"][:1], ROWS["docs"][:1]], [torch.tensor([1, 0])])
    except ValueError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    tiny_bert()  # saves its folder before there are processes: with them, only the first one would write
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    results = {
        "example": example(folder),
        "by hand": by_hand(rank),
        "trained": trained(),
        "disagreements": disagreements(rank),
        "fsdp1": fsdp1(),
        "sharded": sharded(),
        "late": late(rank),  # the last, for they are out of step after it
    }
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
