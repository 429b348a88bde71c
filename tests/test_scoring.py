"""Mini-batches: what is cut, in which order scores come back, and that nothing but time and memory depends on it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import CrossEncoder
from tiny_models import tiny_bert, tiny_decoder
from torch import Tensor, nn
from transformers import DataCollatorWithFlattening

from st_listwise.scoring import Limits, auto_tokens, cut_pairs, score_mini_batches

PAIRS = [
    ("what is a bear", "an animal"),
    ("bear", "a bear is a large animal with a long coat, found in many parts of the world"),
    ("capital of france", "paris"),
    ("capital of france", "rome is the capital of italy"),
    ("how fast", "x"),
    ("why", "because it is so"),
]
SIZES = [1] * len(PAIRS)  #: of lists, for models that look at more than a pair; these here do not
MODELS = pytest.mark.parametrize("build", [tiny_bert, tiny_decoder])
Build = Callable[..., CrossEncoder]


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    size=st.none() | st.integers(1, 9),
    tokens=st.none() | st.integers(1, 200),
    overhead=st.none() | st.integers(0, 100),
)
def test_every_pair_stands_in_one_mini_batch_within_the_limits(
    lengths: list[int], size: int | None, tokens: int | None, overhead: int | None
) -> None:
    lengths.sort(reverse=True)
    cuts = Limits(size, tokens, overhead).cut(lengths)
    assert [index for cut in cuts for index in range(cut.start, cut.stop)] == list(range(len(lengths)))
    assert all(fits(lengths[cut], size, tokens) for cut in cuts)


def fits(batch: list[int], size: int | None, tokens: int | None) -> bool:
    return len(batch) == 1 or (len(batch) <= (size or 99) and len(batch) * batch[0] <= (tokens or 9999))


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=7),
    size=st.none() | st.integers(1, 4),
    tokens=st.none() | st.integers(1, 90),
    overhead=st.integers(0, 40),
)
def test_of_all_ways_to_cut_the_one_of_least_padding_and_overhead_is_taken(
    lengths: list[int], size: int | None, tokens: int | None, overhead: int
) -> None:
    lengths.sort(reverse=True)
    costs, counts = [], []
    for chosen in itertools.product([False, True], repeat=len(lengths) - 1):
        places = [0, *(place + 1 for place, cut in enumerate(chosen) if cut), len(lengths)]
        parts = [lengths[start:stop] for start, stop in itertools.pairwise(places)]
        if all(fits(part, size, tokens) for part in parts):
            costs.append(sum(len(part) * part[0] + overhead for part in parts))
            counts.append((len(parts), sum(len(part) * part[0] for part in parts)))
    cuts = Limits(size, tokens, overhead).cut(lengths)
    assert sum(len(lengths[cut]) * lengths[cut.start] + overhead for cut in cuts) == min(costs)
    fewest = Limits(size, tokens).cut(lengths)
    assert (len(fewest), sum(len(lengths[cut]) * lengths[cut.start] for cut in fewest)) == min(counts)


@pytest.mark.parametrize(
    ("size", "tokens", "expected"),
    [
        (None, None, Limits(None, 1024, 128)),
        (8, None, Limits(8, None)),
        (None, 100, Limits(None, 100, 128)),
        (8, 100, Limits(8, 100, 128)),
        (0, None, Limits(None, None)),  # once meant "the batch size", and the number of queries at that
        (-1, None, Limits(None, None)),
    ],
)
def test_what_the_options_mean(size: int | None, tokens: int | None, expected: Limits) -> None:
    assert Limits.from_options(size, tokens, tiny_bert()) == expected


@pytest.mark.parametrize(
    ("vocabulary", "width", "inner", "expected"),
    [
        (30_522, 1_000, 10_800, 32_768),  # 10.8 million parameters beside the embeddings, as MiniLM-L6 has
        (0, 100, 100, 32_768),
        (30_522, 1_000, 43_200, 8_192),  # four times as many
        (151_936, 4_096, 1_000_000, 2_048),  # 4 billion
    ],
)
def test_larger_models_get_fewer_tokens_on_a_gpu(vocabulary: int, width: int, inner: int, expected: int) -> None:
    """32,768 tokens whatever the model: a decoder of 4 billion parameters needed 200 GB for one mini-batch."""
    layers = nn.Linear(width, inner, bias=False, device="meta")
    model: Any = nn.Sequential(nn.Embedding(vocabulary, width, device="meta"), layers)
    model.device = torch.device("cuda")
    assert auto_tokens(model) == expected


@MODELS
@pytest.mark.parametrize("options", [{}, {"mini_batch_size": 1}, {"mini_batch_size": 4}, {"mini_batch_tokens": 60}])
def test_scores_come_back_in_the_order_of_pairs_and_equal_predict(build: Build, options: dict[str, int]) -> None:
    model = build()
    expected = torch.stack([model.predict([pair], convert_to_tensor=True)[0] for pair in PAIRS])
    scores = score_mini_batches(model, cut_pairs(model, PAIRS, **options), SIZES)
    torch.testing.assert_close(scores.detach(), expected, rtol=1e-4, atol=1e-5)


@MODELS
def test_padding_is_cut_on_the_padded_side_only(build: Build) -> None:
    model = build()
    whole = model.preprocess(PAIRS)
    batches = cut_pairs(model, PAIRS, mini_batch_size=2)
    for rows, features in zip(batches.order.split(2), batches.features):
        real = whole["attention_mask"][rows].bool()
        assert features["attention_mask"].shape[1] == real.sum(-1).max()
        for got, row in zip(features["input_ids"], rows):
            mask = features["attention_mask"][(rows == row).nonzero()[0, 0]].bool()
            assert got[mask].tolist() == whole["input_ids"][row][whole["attention_mask"][row].bool()].tolist()


def test_a_pair_longer_than_the_budget_runs_alone() -> None:
    model = tiny_bert()
    batches = cut_pairs(model, PAIRS, mini_batch_tokens=5)
    assert [len(features["input_ids"]) for features in batches.features] == [1] * len(PAIRS)


def test_longest_pairs_run_first_so_that_memory_runs_out_at_once_or_never() -> None:
    widths = [f["input_ids"].shape[1] for f in cut_pairs(tiny_bert(), PAIRS, mini_batch_size=1).features]
    assert widths == sorted(widths, reverse=True)


class Pictures(nn.Module):
    """Stands for a model whose inputs have no attention mask: each pair is one row of patches of any number."""

    device = torch.device("cpu")
    num_labels = 1

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.calls: list[int] = []
        self.options: list[dict[str, Any]] = []

    def preprocess(self, pairs: list[Any], **options: Any) -> dict[str, Any]:
        self.options.append(options)
        sizes = [picture for _, picture in pairs]
        return {"pixel_values": torch.cat([torch.full((n, 3), float(n)) for n in sizes]), "sizes": sizes}

    def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
        self.calls.append(len(features["sizes"]))
        parts = features["pixel_values"].split(features["sizes"])
        return {"scores": self.weight * torch.stack([part.mean() for part in parts])}


@pytest.mark.parametrize(
    ("options", "calls"), [({}, [32, 8]), ({"mini_batch_size": 15}, [15, 15, 10]), ({"mini_batch_size": -1}, [40])]
)
def test_inputs_without_an_attention_mask_are_cut_by_count(options: dict[str, int], calls: list[int]) -> None:
    model = Pictures()
    pairs = [("q", 1 + index % 7) for index in range(40)]
    batches = cut_pairs(model, pairs, prompt="rank: ", task="rerank", **options)
    scores = score_mini_batches(model, batches, [len(pairs)])
    assert model.calls == calls
    assert model.options == [{"prompt": "rank: ", "task": "rerank"}] * (1 + len(calls))  # to tell lengths, to cut
    assert scores.tolist() == [2.0 * size for _, size in pairs]


class Flattened(nn.Module):
    """Stands for a model with FlashAttention: all pairs in one row of tokens, as transformers flattens them."""

    device = torch.device("cpu")
    num_labels = 1

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(500, 4)
        self.calls: list[int] = []

    def preprocess(self, pairs: list[Any], **options: Any) -> dict[str, Any]:
        collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_position_ids=True)
        texts = [f"{query} {doc}".encode() for query, doc in pairs]
        return dict(collate([{"input_ids": list(text)} for text in texts]))

    def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
        self.calls.append(features["input_ids"].numel())
        ends = features["cu_seq_lens_q"].flatten().tolist()
        rows = self.tokens(features["input_ids"][0])
        own = [rows[start:end].mean(0).prod() for start, end in itertools.pairwise(ends)]
        return {"scores": torch.stack(own)}


def test_flattened_inputs_are_cut_by_tokens_and_scored_as_alone() -> None:
    """They were cut by a count of pairs, short and long alike, whatever the token budget."""
    model = Flattened()
    expected = torch.cat([model(model.preprocess([pair]))["scores"] for pair in PAIRS])
    model.calls.clear()
    scores = score_mini_batches(model, cut_pairs(model, PAIRS, mini_batch_tokens=90), SIZES, recompute=True)
    torch.testing.assert_close(scores, expected)
    lengths = sorted((len(f"{query} {doc}") for query, doc in PAIRS), reverse=True)
    assert lengths == [80, 46, 24, 23, 20, 10]  # 2 x 46 and 4 x 24 are more than 90
    assert model.calls == [80, 46, sum(lengths[2:5]), lengths[5]]
    (scores * torch.arange(6.0)).sum().backward()
    got = model.tokens.weight.grad
    model.tokens.weight.grad = None
    (expected * torch.arange(6.0)).sum().backward()
    torch.testing.assert_close(got, model.tokens.weight.grad)


def test_a_model_with_two_scores_a_pair_is_refused() -> None:
    model = tiny_bert(num_labels=2)
    with pytest.raises(ValueError, match="12 scores for 6 pairs"):
        score_mini_batches(model, cut_pairs(model, PAIRS), SIZES)


def test_recomputing_keeps_the_graph_of_one_mini_batch_only() -> None:
    """Counts what autograd saves: with recompute it must not grow with the number of mini-batches."""

    def saved(pairs: int, recompute: bool) -> int:
        model = tiny_bert()
        batches = cut_pairs(model, [PAIRS[1]] * pairs, mini_batch_size=1)
        seen: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            seen[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            score_mini_batches(model, batches, SIZES, recompute=recompute).sum()
        return sum(seen.values()) - sum(parameter.numel() for parameter in model.parameters())

    assert saved(12, recompute=True) < 1.2 * saved(2, recompute=True)
    assert saved(12, recompute=False) > 4 * saved(2, recompute=False)
