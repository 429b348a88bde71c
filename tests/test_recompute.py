"""Recomputing: nothing but memory and time depends on it; what teaches nothing is left out; "auto" keeps what fits."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder
from tiny_models import tiny_bert, tiny_decoder, tiny_set
from torch import Tensor

from st_listwise import LambdaLoss, ListMLELoss, recompute
from st_listwise.losses.base import ListwiseLoss
from st_listwise.scoring import cut_pairs, score_mini_batches

sys.path.append(str(Path(__file__).parent / "benchmarks"))

from measure import tensor_peak

QUERIES = ["what is a bear", "capital of france", "how fast"]
DOCS = [
    ["an animal", "a planet", "a bear is a large animal with a long coat", "fish", "x"],
    ["paris", "rome is the capital of italy", "lyon"],
    ["as fast as light", "slow", "it is so", "why"],
]
TEACHES_ONE = [[1.0, 0.0, 2.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
BUILDERS = pytest.mark.parametrize("build", [tiny_bert, tiny_decoder, tiny_set])
Build = Callable[..., CrossEncoder]


def _gradients(loss: ListwiseLoss, labels: list[list[float]] = TEACHES_ONE) -> dict[str, Tensor]:
    torch.manual_seed(7)
    loss.model.zero_grad()
    loss([QUERIES, DOCS], [torch.tensor(row) for row in labels]).backward()
    return {name: part.grad for name, part in loss.model.named_parameters() if part.grad is not None}


def _count_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each second pass, as they come."""
    rows: list[int] = []
    whole = recompute._Part.backward

    def counted(part: Any, stage: Any, *given: Any) -> Any:
        def watched(features: Any) -> Any:
            rows.append(len(features["input_ids"]))
            return stage(features)

        return whole(part, watched, *given)

    monkeypatch.setattr(recompute._Part, "backward", counted)
    return rows


@BUILDERS
def test_documents_of_lists_that_teach_nothing_get_no_second_pass(build: Build, monkeypatch: Any) -> None:
    """Two of three lists have one label: their 7 documents were computed twice for a gradient of zero."""
    model = build().double()
    expected = _gradients(ListMLELoss(model, mini_batch_size=4))
    rows = _count_rows(monkeypatch)
    got = _gradients(ListMLELoss(model, mini_batch_size=4, recompute=True))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-13)
    pairs = [(query, doc) for query, docs in zip(QUERIES, DOCS) for doc in docs]
    earlier = cut_pairs(model, pairs, mini_batch_size=4).order[:8]  # the last mini-batch keeps its graph
    assert sum(rows) == int((earlier < 5).sum()) < 8


def test_documents_whose_pairs_lie_beyond_top_k_get_no_second_pass(monkeypatch: Any) -> None:
    """LambdaLoss with k=1 has pairs of the first document only: those with its label have a gradient of zero."""
    model = tiny_bert().double()
    labels = [[1.0, 0.0, 2.0, 0.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]]
    expected = _gradients(LambdaLoss(model, k=1, mini_batch_size=-1), labels)
    rows = _count_rows(monkeypatch)
    got = _gradients(LambdaLoss(model, k=1, mini_batch_size=3, recompute=True), labels)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-13)
    pairs = [(query, doc) for query, docs in zip(QUERIES, DOCS) for doc in docs]
    ranked = [iter(model.rank(query, docs)) for query, docs in zip(QUERIES, DOCS)]
    teaches: list[bool] = []
    for ranking, row in zip(ranked, labels):
        first = next(ranking)["corpus_id"]
        teaches += [place == first or label != row[first] for place, label in enumerate(row)]
    earlier = cut_pairs(model, pairs, mini_batch_size=3).order[:9].tolist()
    assert sum(rows) == sum(teaches[index] for index in earlier) < 9


def test_with_dropout_a_mini_batch_runs_again_whole_or_not_at_all(monkeypatch: Any) -> None:
    """A row without its neighbours would meet their dropout masks, and teach another network."""
    model = tiny_bert(dropout=0.3).double().train()
    expected = _gradients(ListMLELoss(model, mini_batch_size=2))
    rows = _count_rows(monkeypatch)
    got = _gradients(ListMLELoss(model, mini_batch_size=2, recompute=True))
    assert got.keys() == expected.keys()
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-13)
    assert set(rows) == {2}
    assert len(rows) < 5, "of the 5 mini-batches that keep no graph, some hold documents that teach nothing only"


@BUILDERS
@pytest.mark.parametrize("inside", [True, False])
def test_the_second_pass_is_in_the_autocast_of_the_first_one_and_not_in_that_of_backward(
    build: Build, inside: bool
) -> None:
    model = build()
    seen: list[torch.dtype] = []
    layer = next(module for module in model.modules() if isinstance(module, torch.nn.Linear))
    layer.register_forward_hook(lambda *given: seen.append(given[-1].dtype))
    loss = ListMLELoss(model, mini_batch_size=4, recompute=True)
    labels = [torch.arange(float(len(docs))) for docs in DOCS]  # all teach
    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        value = loss([QUERIES, DOCS], labels)
    assert len(seen) == 3
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        value.backward()
    assert seen == [torch.bfloat16 if inside else torch.float32] * 5  # of the last mini-batch the graph is kept


def test_random_numbers_go_on_as_without_recomputing() -> None:
    """The second pass put the generator back to where the first had begun: the next step would draw the same masks."""
    model = tiny_bert(dropout=0.3).train()
    drawn = []
    for option in (False, True, "auto"):
        _gradients(ListMLELoss(model, mini_batch_size=2, recompute=option))  # type: ignore[arg-type]
        drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[1] == drawn[2]


@BUILDERS
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 1.5])
def test_auto_keeps_what_fits_and_changes_no_gradient(build: Build, share: float, monkeypatch: Any) -> None:
    """Memory of a given share of all activations: so many mini-batches keep their graph, the shortest."""
    model = build(dropout=0.2).train()
    batches = cut_pairs(model, [("q" * 9, "d" * 9)] * 20, mini_batch_size=2)
    stage = model.encode_pairs if build is tiny_set else lambda features: {"scores": model(dict(features))["scores"]}
    of_one = recompute._run_first(stage, batches.features[0], list(model.parameters()))[-1]
    monkeypatch.setattr("st_listwise.scoring.free_memory", lambda *given: share * 9 * of_one)
    again = _count_rows(monkeypatch)
    gradients = []
    for option in (False, True, "auto"):
        torch.manual_seed(3)
        model.zero_grad()
        again.clear()
        scores = score_mini_batches(model, batches, [20], recompute=option)  # type: ignore[arg-type]
        (scores * torch.linspace(-1, 2, 20)).sum().backward()
        gradients.append({name: part.grad for name, part in model.named_parameters() if part.grad is not None})
    for other in gradients[1:]:
        assert other.keys() == gradients[0].keys()
        assert all(torch.equal(gradients[0][name], other[name]) for name in other)
    assert len(again) == 9 - min(9, int(share * 9)), "9 mini-batches before the last, all alike"


def test_free_memory_leaves_room_for_gradients_and_follows_the_control_group(tmp_path: Any, monkeypatch: Any) -> None:
    weights = torch.nn.Linear(1000, 1000)  # 4,004,000 bytes of gradients
    (tmp_path / "memory.max").write_text("30000000\n")
    (tmp_path / "memory.current").write_text("10000000\n")
    monkeypatch.setattr(recompute, "CGROUP", tmp_path)
    cpu, parameters = torch.device("cpu"), list(weights.parameters())
    assert recompute.free_memory(cpu, parameters) == 0.5 * (20_000_000 - 4_004_000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert recompute.free_memory(cpu, parameters) == 0.5 * (10_000_000 - 4_004_000)
    (tmp_path / "memory.max").write_text("10000000\n")
    assert recompute.free_memory(cpu, parameters) == 0
    assert recompute.free_memory(torch.device("meta"), parameters) == 0


@pytest.mark.parametrize("space", [0.0, 50.0, 1e9])
def test_activations_are_gone_after_the_step(space: float) -> None:
    """A hook that handed back the output of a node made it keep itself: each step lost a mini-batch of memory."""
    weight = torch.nn.Parameter(torch.ones(3))
    seen: list[weakref.ref[Tensor]] = []

    def stage(features: dict[str, Tensor]) -> dict[str, Tensor]:
        activations = (weight * features["x"]).exp()  # exp keeps its output
        scores = activations.sum(-1)
        seen.extend([weakref.ref(activations), weakref.ref(scores)])
        return {"scores": scores}

    parts = recompute.run_mini_batches(stage, [{"x": torch.rand(2, 3)} for _ in range(4)], [weight], space)
    sum(part["scores"].sum() for part in parts).backward()
    assert weight.grad is not None
    del parts
    assert len(seen) >= 8
    assert [ref() for ref in seen] == [None] * len(seen)


def test_a_parameter_that_is_not_used_gets_no_gradient() -> None:
    """A trainable pooler that scores do not go through must look the same to an optimizer with and without."""
    model = tiny_bert()
    model.extra = torch.nn.Parameter(torch.ones(3))
    model.extra.register_hook(lambda gradient: gradient / 2)
    _gradients(ListMLELoss(model, mini_batch_size=2, recompute=True))
    assert model.extra.grad is None


class Routed(torch.nn.Module):
    """Two experts; each pair goes to the one that its length names."""

    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList([head, deepcopy(head)])

    def forward(self, vectors: Tensor) -> Tensor:
        return torch.cat([self.experts[int(vector.sum() > 0)](vector[None]) for vector in vectors])


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("option", [True, "auto"])
def test_a_parameter_that_the_first_mini_batch_does_not_use_gets_its_gradient(
    option: Any, hooked: bool, monkeypatch: Any
) -> None:
    """Parameters were those of the first mini-batch: an expert that only later pairs are sent to was not trained."""
    monkeypatch.setattr("st_listwise.scoring.free_memory", lambda *given: 0.0)
    model = tiny_bert().double()
    model.model.classifier = Routed(model.model.classifier)
    all_teach = [[1.0, 0.0, 2.0, 0.0, 0.0], [1.0, 2.0, 0.0], [0.0, 3.0, 1.0, 2.0]]
    expected = _gradients(ListMLELoss(model, mini_batch_size=1), all_teach)
    assert all(expected[f"0.model.classifier.experts.{number}.weight"].abs().sum() > 0 for number in (0, 1))
    got = _gradients(ListMLELoss(model, mini_batch_size=1, recompute=option), all_teach)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    if hooked:
        seen: list[int] = []
        for expert in model.model.classifier.experts:
            expert.weight.register_hook(lambda gradient: seen.append(gradient.numel()))
        got = _gradients(ListMLELoss(model, mini_batch_size=1, recompute=option), all_teach)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
        assert len(seen) == 2


@pytest.mark.parametrize("size", [2, 0])
def test_a_step_that_teaches_nothing_gives_zeros_with_and_without(size: int) -> None:
    """No second pass left no gradient at all: an optimizer skipped the step that it takes on zeros."""
    model = tiny_bert()
    nothing = [[1.0] * len(docs) for docs in DOCS]
    expected = _gradients(ListMLELoss(model, mini_batch_size=size), nothing)
    got = _gradients(ListMLELoss(model, mini_batch_size=size, recompute=True), nothing)
    assert expected
    assert all(gradient.count_nonzero() == 0 for gradient in expected.values())
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_reentrant_gradient_checkpointing_is_refused_with_what_to_do() -> None:
    """torch's error spoke of .grad() and never of recompute."""
    model = tiny_bert().train()
    model.model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match=r'recompute does not go with .*"use_reentrant": False'):
        _gradients(ListMLELoss(model, mini_batch_size=2, recompute=True))
    model.model.gradient_checkpointing_enable({"use_reentrant": False})
    assert _gradients(ListMLELoss(model, mini_batch_size=2, recompute=True))


def test_a_hook_on_a_parameter_meets_its_gradient_once() -> None:
    """Hooks ran on what each second pass gave and again on the sum: one that halves made quarters of it."""
    model = tiny_bert().double()
    weight = model.model.classifier.weight
    expected = _gradients(ListMLELoss(model, mini_batch_size=2))
    seen: list[Tensor] = []
    handle = weight.register_hook(lambda gradient: (seen.append(gradient.clone()), gradient / 2)[1])
    got = _gradients(ListMLELoss(model, mini_batch_size=2, recompute=True))
    handle.remove()
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], expected["0.model.classifier.weight"], rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(got["0.model.classifier.weight"], seen[0] / 2, rtol=0, atol=0)
    again = _gradients(ListMLELoss(model, mini_batch_size=2, recompute=True))
    torch.testing.assert_close(again, expected, rtol=1e-10, atol=1e-13)


def test_there_is_one_set_of_gradients_at_a_time() -> None:
    """Each second pass held gradients of all parameters beside their sum, and the last mini-batch a third set."""
    weights = [torch.nn.Parameter(torch.rand(1000, 250)) for _ in range(16)]  # 1 MB each

    def stage(features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"scores": torch.stack([(features["x"] @ weight).tanh().sum(-1) for weight in weights]).sum(0)}

    batches = [{"x": torch.rand(2, 1000)} for _ in range(5)]

    def step() -> None:
        parts = recompute.run_mini_batches(stage, batches, weights, keep_last=True)
        torch.cat([part["scores"] for part in parts]).sum().backward()

    held = tensor_peak(step) * 2**20 / 1e6
    assert 16 <= held < 19, "16 MB of sums, a gradient on its way to them, little else"


@pytest.mark.parametrize("option", ["always", 2, None])
def test_recompute_is_true_false_or_auto(option: Any) -> None:
    with pytest.raises(ValueError, match=r'recompute=.*must be True, False or "auto"'):
        ListMLELoss(tiny_bert(), recompute=option)


@pytest.mark.parametrize(
    ("build", "always", "backend"),
    [(tiny_bert, True, "aot_eager"), (tiny_bert, False, "eager"), (tiny_set, True, "eager")],
)
def test_a_model_in_compiles_wrapper_gives_the_same_gradients(build: Build, always: bool, backend: str) -> None:
    """As the trainer's torch_compile=True makes it. A set model in it was taken for one that scores pairs alone."""
    model = build().double()
    expected = _gradients(ListMLELoss(model, mini_batch_size=4))
    loss = ListMLELoss(model, mini_batch_size=4, recompute=always)
    loss.model = compiled = torch.compile(model, backend=backend, dynamic=True)  # type: ignore[assignment]
    got = _gradients(loss)
    assert loss.model is compiled
    torch.testing.assert_close({name.removeprefix("_orig_mod."): own for name, own in got.items()}, expected)
