"""All loss classes on all kinds of model: no batching option changes value or gradient, and bad input is named."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import reference
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.losses import NDCGLoss2Scheme, PListMLELambdaWeight
from tiny_models import tiny_bert, tiny_decoder, tiny_set
from torch import Tensor, nn

import st_listwise
from st_listwise import testing

QUERIES = ["what is a bear", "capital of france", "how fast", "why", "one", "same"]
DOCS = [
    ["an animal", "a planet"],
    ["paris is the capital", "rome", "berlin is big and far away", "x"],
    ["fast as light", "slow", "it is so"],
    ["because", "no", "yes it is so"],
    ["alone"],
    ["equal", "labels"],
]
LABELS = [torch.tensor(row) for row in ([1, 0], [2, 0, 1, 0], [0, 1, 0], [1, 0, 3], [1], [1, 1])]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "ListMLELoss": [{}, {"ties": "input", "top_k": 2}, {"respect_input_order": True}],
    "PListMLELoss": [{}, {"lambda_weight": lambda mask: 1 / (1.0 + mask.cumsum(-1))}],
    "ListNetLoss": [{"label_temperature": 0.5}],
    "AttentionRankLoss": [{}],
    "ADRMSELoss": [{}, {"alpha": 2.0, "discount": "reciprocal", "normalize": True}],
    # Not the default of 5, whose steep sigmoid magnifies the decoder's float32 rounding fivefold.
    "ApproxNDCGLoss": [{"alpha": 1.0}, {"alpha": 1.0, "top_k": 2, "gain": "linear"}],
    "ApproxMRRLoss": [{}],
    "RankNetLoss": [{}, {"k": 1}],
    "LambdaLoss": [
        {},
        {"weighting_scheme": "ndcg1"},
        {"weighting_scheme": lambda gain, discount, labels: gain[:, :, None]},
    ],
}
NAMES = list(OPTIONS)
CASES = [(name, options) for name in NAMES for options in OPTIONS[name]]
MODELS = pytest.mark.parametrize("build", [tiny_bert, tiny_decoder, tiny_set])
#: In double precision; but a decoder's norms and rotations are computed in float32, whatever its weights are.
PRECISION = {tiny_bert: 1e-9, tiny_decoder: 1e-6, tiny_set: 1e-9}
Build = Callable[..., CrossEncoder]
BATCHING: list[dict[str, Any]] = [
    *({"mini_batch_size": size, "recompute": recompute} for size in (1, 3, 7, -1) for recompute in (False, True)),
    {"mini_batch_size": None},
    {"mini_batch_tokens": 20, "recompute": True},
    {"mini_batch_tokens": 64},
    {"mini_batch_size": 2, "mini_batch_tokens": 10000},
]


def test_the_table_names_every_loss() -> None:
    assert set(NAMES) == set(st_listwise.losses.__all__) - {"ListwiseLoss", "CombinedLoss"}


def step(loss: nn.Module, inputs: Any = None, labels: Any = None, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    loss.zero_grad()
    value = loss([QUERIES, DOCS] if inputs is None else inputs, LABELS if labels is None else labels, **options)
    value.backward()
    gradients = {name: part.grad.clone() for name, part in loss.named_parameters() if part.grad is not None}
    return value.detach(), gradients


def same(
    actual: tuple[Tensor, dict[str, Tensor]], expected: tuple[Tensor, dict[str, Tensor]], precision: float
) -> None:
    """Equal to ``precision``, relative to the value and to the largest entry of the whole gradient."""
    torch.testing.assert_close(actual[0], expected[0], rtol=precision, atol=precision)
    assert actual[1].keys() == expected[1].keys()
    scale = max(float(gradient.abs().max()) for gradient in expected[1].values())
    for name, gradient in actual[1].items():
        assert float((gradient - expected[1][name]).abs().max()) <= precision * scale, name


@MODELS
@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_batch_is_the_mean_of_its_lists_for_value_and_every_gradient(
    build: Build, name: str, options: dict[str, Any]
) -> None:
    loss = getattr(st_listwise, name)(build().double(), **options)
    testing.check_batch_invariance(loss, [QUERIES, DOCS], LABELS, tolerance=PRECISION[build])


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_list_loss_of_every_class_passes_the_public_checks(name: str, options: dict[str, Any]) -> None:
    """Weights of positions were as wide as the longest list, and not as the mask: ValueError."""
    loss = getattr(st_listwise, name)(tiny_bert(), **options)
    ordered = options.get("ties") == "input" or options.get("respect_input_order", False)
    testing.check_list_loss(loss.list_loss, input_order=ordered)


#: class, its options, what its lists give by the slow reference
VALUES: list[tuple[str, dict[str, Any], Callable[[list[float], list[float]], float]]] = [
    ("ListMLELoss", {}, reference.list_mle),
    ("ListMLELoss", {"ties": "input"}, partial(reference.list_mle, ties="input")),
    ("ListMLELoss", {"top_k": 1}, partial(reference.list_mle, top_k=1)),
    ("PListMLELoss", {}, reference.p_list_mle),
    ("PListMLELoss", {"ties": "input"}, partial(reference.p_list_mle, ties="input")),
    ("PListMLELoss", {"lambda_weight": None}, reference.list_mle),
    ("PListMLELoss", {"lambda_weight": None, "ties": "input"}, partial(reference.list_mle, ties="input")),
    (
        "PListMLELoss",
        {"lambda_weight": lambda mask: 1 / (1.0 + mask.cumsum(-1)), "ties": "input"},
        partial(reference.p_list_mle, weights=[1 / 2, 1 / 3, 1 / 4, 1 / 5], ties="input"),
    ),
    ("ListNetLoss", {}, reference.list_net),
    ("ListNetLoss", {"label_temperature": 0.5}, partial(reference.list_net, label_temperature=0.5)),
    ("AttentionRankLoss", {}, reference.attention_rank),
    ("ADRMSELoss", {}, reference.adr_mse),
    ("ADRMSELoss", {"discount": "reciprocal"}, partial(reference.adr_mse, discount="reciprocal")),
    ("ADRMSELoss", {"alpha": 2.0, "normalize": True}, partial(reference.adr_mse, alpha=2.0, normalize=True)),
    ("ApproxNDCGLoss", {}, partial(reference.approx_ndcg, alpha=5.0)),
    ("ApproxNDCGLoss", {"alpha": 2.0, "top_k": 1}, partial(reference.approx_ndcg, alpha=2.0, top_k=1)),
    ("ApproxNDCGLoss", {"gain": "linear"}, partial(reference.approx_ndcg, alpha=5.0, gain="linear")),
    ("ApproxMRRLoss", {}, reference.approx_mrr),
    ("ApproxMRRLoss", {"alpha": 3.0}, partial(reference.approx_mrr, alpha=3.0)),
    ("RankNetLoss", {}, reference.rank_net),
    ("RankNetLoss", {"k": 1, "sigma": 0.5}, partial(reference.rank_net, top_k=1, sigma=0.5)),
    ("RankNetLoss", {"reduction_log": "natural"}, partial(reference.rank_net, log_base="natural")),
    ("LambdaLoss", {}, reference.lambda_loss),
    ("LambdaLoss", {"weighting_scheme": "ndcg1"}, partial(reference.lambda_loss, weighting="ndcg1")),
    ("LambdaLoss", {"k": 1, "sigma": 2.0}, partial(reference.lambda_loss, top_k=1, sigma=2.0)),
    ("LambdaLoss", {"mu": 3.0, "gain": "linear"}, partial(reference.lambda_loss, mu=3.0, gain="linear")),
    ("LambdaLoss", {"eps": 5.0}, partial(reference.lambda_loss, eps=5.0)),
    ("LambdaLoss", {"reduction_log": "natural"}, partial(reference.lambda_loss, log_base="natural")),
]


@pytest.mark.parametrize(("name", "options", "slow"), VALUES)
def test_the_value_is_the_slow_references_with_the_options_that_are_given(
    name: str, options: dict[str, Any], slow: Callable[[list[float], list[float]], float]
) -> None:
    model = tiny_bert()
    scores = [model.predict([(query, doc) for doc in docs]).tolist() for query, docs in zip(QUERIES, DOCS)]
    expected = [slow(own, labels.tolist()) for own, labels in zip(scores, LABELS)]
    value, _ = step(getattr(st_listwise, name)(model, **options))
    assert value.item() == pytest.approx(sum(expected) / 6, rel=1e-4)


@MODELS
@pytest.mark.parametrize("name", ["ListMLELoss", "ADRMSELoss", "LambdaLoss"])
def test_mini_batches_and_recompute_change_nothing(build: Build, name: str) -> None:
    model = build().double()
    loss_class = getattr(st_listwise, name)
    options = OPTIONS[name][0]
    expected = step(loss_class(model, mini_batch_size=-1, **options))
    assert expected[1]
    for batching in BATCHING:
        same(step(loss_class(model, **batching, **options)), expected, PRECISION[build])


@MODELS
@pytest.mark.parametrize("name", ["ListMLELoss", "ADRMSELoss"])
def test_dropout_is_replayed_bit_by_bit(build: Build, name: str) -> None:
    """Peers replayed the second pass without the first one's dropout: gradients of another network."""
    model = build(dropout=0.3).train()
    results = []
    for recompute in (False, True):
        loss = getattr(st_listwise, name)(model, mini_batch_size=2, recompute=recompute)
        torch.manual_seed(5)
        results.append(step(loss))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1].keys() == results[1][1].keys()
    assert all(torch.equal(gradient, results[1][1][key]) for key, gradient in results[0][1].items())


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_a_third_column_multiply_each_list(name: str) -> None:
    model = tiny_bert().double()
    loss = getattr(st_listwise, name)(model)
    weights = [0.5, 2.0, 0.0, 1.0, 3.0, 1.0]
    value, _ = step(loss, [QUERIES, DOCS, weights])
    singles = [step(loss, [QUERIES[i : i + 1], DOCS[i : i + 1]], LABELS[i : i + 1])[0] for i in range(6)]
    expected = sum(weight * single for weight, single in zip(weights, singles)) / 6
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_lists_that_cannot_teach_give_zeros_and_not_none(name: str) -> None:
    value, gradients = step(getattr(st_listwise, name)(tiny_bert()), [QUERIES[4:], DOCS[4:]], LABELS[4:])
    assert value == 0
    assert gradients
    assert all((gradient == 0).all() for gradient in gradients.values())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("ListMLELoss", torch.bfloat16), ("ADRMSELoss", torch.bfloat16), ("LambdaLoss", torch.float16)],
)
def test_half_precision_changes_value_and_gradient_by_its_rounding_alone(name: str, dtype: torch.dtype) -> None:
    """A score is rounded in each of ten products of matrices on its way; over all scores errors cancel out."""
    loss = getattr(st_listwise, name)(tiny_bert(), mini_batch_size=3, recompute=True)
    expected, expected_gradients = step(loss)
    loss.zero_grad()
    with torch.autocast("cpu", dtype=dtype):
        value = loss([QUERIES, DOCS], LABELS)
    value.backward()
    assert value.dtype == torch.float32
    assert value != expected
    eps = torch.finfo(dtype).eps
    assert value.item() == pytest.approx(expected.item(), rel=2 * eps)
    gradients = {name: part.grad for name, part in loss.named_parameters() if part.grad is not None}
    assert gradients.keys() == expected_gradients.keys()
    flat, expected_flat = (torch.cat([own[key].flatten() for key in own]) for own in (gradients, expected_gradients))
    assert (flat - expected_flat).norm() <= 10 * eps * expected_flat.norm()


def test_bfloat16_weights_train() -> None:
    value, gradients = step(st_listwise.ListMLELoss(tiny_bert().bfloat16(), mini_batch_size=3))
    assert value.dtype == torch.float32
    expected, _ = step(st_listwise.ListMLELoss(tiny_bert()))
    assert value.item() == pytest.approx(expected.item(), rel=2 * torch.finfo(torch.bfloat16).eps)
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())
    assert {gradient.dtype for gradient in gradients.values()} == {torch.bfloat16}


def test_no_grad_gives_the_same_value() -> None:
    loss = st_listwise.LambdaLoss(tiny_bert(), mini_batch_size=2, recompute=True)
    with torch.no_grad():
        value = loss([QUERIES, DOCS], LABELS)
    assert not value.requires_grad
    torch.testing.assert_close(value, step(loss)[0])


@MODELS
def test_the_prompt_is_passed_on(build: Build) -> None:
    loss = st_listwise.ListMLELoss(build())
    prompted = step(loss, prompt="rank: ")[0]
    assert prompted != step(loss)[0]
    torch.testing.assert_close(prompted, step(loss, [[f"rank: {query}" for query in QUERIES], DOCS])[0])


def test_the_activation_is_applied_to_the_scores() -> None:
    model = tiny_bert()
    scaled = st_listwise.ListMLELoss(model, activation_fn=nn.Hardtanh(-1e-6, 1e-6))
    uniform = [math.log(2), math.log(4) + math.log(3), math.log(3), math.log(3) + math.log(2)]  # choices among equals
    assert step(scaled)[0].item() == pytest.approx(sum(uniform) / 6, abs=1e-5)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_configuration_rebuilds_the_loss(name: str, options: dict[str, Any]) -> None:
    model = tiny_bert()
    loss = getattr(st_listwise, name)(model, **options, mini_batch_tokens=77, recompute=True, activation_fn=nn.Tanh())
    config = json.loads(json.dumps(loss.get_config_dict()))
    if any(callable(value) for value in options.values()):
        assert any("<lambda>" in str(value) for value in config.values())  # named, if not to be rebuilt from a name
        return
    rebuilt = type(loss)(model, **config)
    assert rebuilt.get_config_dict() == config
    assert step(rebuilt)[0] == step(loss)[0]


def test_an_activation_with_arguments_is_not_rebuilt_without_them() -> None:
    """The configuration named the class alone: Hardtanh between -1 and 1 came back for any other one."""
    model = tiny_bert()
    name = st_listwise.ListMLELoss(model, activation_fn=nn.Hardtanh()).get_config_dict()["activation_fn"]
    assert name == "torch.nn.modules.activation.Hardtanh"
    name = st_listwise.ListMLELoss(model, activation_fn=nn.Hardtanh(-2, 3)).get_config_dict()["activation_fn"]
    assert name == "torch.nn.modules.activation.Hardtanh(min_val=-2, max_val=3)"
    with pytest.raises(ValueError, match="without arguments can be given; pass the module"):
        st_listwise.ListMLELoss(model, activation_fn=name)


def test_pairs_longer_than_the_models_longest_input_do_not_stop_the_count_of_those_cut_alike() -> None:
    """Processing may take more tokens than max_seq_length says: rows of several widths could not be put together."""
    model = tiny_bert()
    model.max_seq_length = 16
    model[0].processing_kwargs = {"text": {"max_length": 64}}
    docs = [" ".join("x" * count) for count in (30, 20, 80, 80, 90)]
    ready = st_listwise.ListMLELoss(model, mini_batch_size=1).prepare(
        [["q"], [docs]], [torch.tensor([1.0, 0, 0, 0, 0])]
    )
    widths = [features["input_ids"].shape[1] for features in ready.mini_batches.features]
    assert widths == [64, 64, 64, 34, 24]  # [CLS] q [SEP] … [SEP]
    assert ready.alike == 3


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_cites_its_paper(name: str) -> None:
    citation = getattr(st_listwise, name)(tiny_bert()).citation
    assert citation.strip().startswith("@")
    assert citation.count("{") == citation.count("}")


# Several losses on one forward pass


@MODELS
def test_combined_losses_give_the_weighted_sum_of_their_gradients_from_one_forward_pass(build: Build) -> None:
    model = build().double()
    rank, teacher = st_listwise.ListMLELoss(model, activation_fn=nn.Tanh()), st_listwise.ADRMSELoss(model)
    expected: dict[str, Tensor] = {}
    values = []
    for loss, weight in ((rank, 2.0), (teacher, 0.5)):
        value, gradients = step(loss, [QUERIES, DOCS, [0.5, 2.0, 0.0, 1.0, 3.0, 1.0]])
        values.append(weight * value)
        for name, gradient in gradients.items():
            expected[name] = expected.get(name, 0) + weight * gradient
    combined = st_listwise.CombinedLoss({"a": (rank, 2.0), "b": (teacher, 0.5)}, mini_batch_size=-1)
    forwards: list[int] = []
    hook = model[0].register_forward_hook(lambda *_: forwards.append(1))
    model.zero_grad()
    components = combined([QUERIES, DOCS, [0.5, 2.0, 0.0, 1.0, 3.0, 1.0]], LABELS)
    hook.remove()
    assert len(forwards) == 1
    sum(components.values()).backward()
    assert list(components) == ["a", "b"]
    precision = {"rtol": PRECISION[build], "atol": PRECISION[build]}
    torch.testing.assert_close([part.detach() for part in components.values()], values, **precision)
    found = {f"model.{name}": part.grad for name, part in model.named_parameters() if part.grad is not None}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], **precision)


def test_the_list_loss_of_a_combination_is_the_weighted_sum_of_those_of_its_parts() -> None:
    model = tiny_bert()
    parts = {"a": (st_listwise.ListMLELoss(model), 2.0), "b": (st_listwise.ADRMSELoss(model), 0.5)}
    combined = st_listwise.CombinedLoss(parts)
    testing.check_list_loss(combined.list_loss)
    scores, labels, mask = testing.random_lists()
    lists = [(own[real].tolist(), graded[real].tolist()) for own, graded, real in zip(scores, labels, mask)]
    expected = [2 * reference.list_mle(*one) + 0.5 * reference.adr_mse(*one) for one in lists]
    assert combined.list_loss(scores, labels, mask).tolist() == pytest.approx(expected, rel=1e-9)
    weighted = st_listwise.PListMLELoss(model, lambda_weight=lambda mask: 1 / mask.cumsum(-1))
    testing.check_list_loss(st_listwise.CombinedLoss({"a": (weighted, 1.0)}).list_loss)


def test_the_task_reaches_the_models_preprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_bert()
    preprocess = model.preprocess
    seen: list[tuple[str | None, str | None]] = []

    def spy(pairs: Any, prompt: str | None = None, task: str | None = None) -> Any:
        seen.append((prompt, task))
        return preprocess(pairs, prompt=prompt)

    monkeypatch.setattr(model, "preprocess", spy)
    loss = st_listwise.ListMLELoss(model)
    for called in (loss, st_listwise.CombinedLoss({"a": (loss, 1.0)})):
        called([QUERIES, DOCS], LABELS, prompt="rank: ", task="rerank")
    collator = st_listwise.ListwiseDataCollator(loss, prompts="rank: ", router_mapping="rerank")
    collator([{"query": query, "docs": docs, "labels": [1.0] * len(docs)} for query, docs in zip(QUERIES, DOCS)])
    assert seen == [("rank: ", "rerank")] * 3


def test_what_cannot_be_combined_is_refused() -> None:
    model = tiny_bert()
    loss = st_listwise.ListMLELoss(model)
    for parts, message in (
        ({}, "a dictionary of at least one loss: {'name'"),
        ([loss], "a dictionary of at least one loss: {'name'"),
        (loss, "a dictionary of at least one loss: {'name'"),
        ({"a": loss}, r"'a' is ListMLELoss, expected \(loss, weight\), such as \(ListMLELoss\(model\), 1\.0\)\."),
        ({"a": (loss,)}, r"'a' is tuple, expected \(loss, weight\)"),
        ({"a": (1.0, loss)}, "'a' is float, not a loss of st_listwise"),
        ({"a": (nn.MSELoss(), 1.0)}, "'a' is MSELoss, not a loss of st_listwise"),
        ({"a": (loss, -1.0)}, "weight of 'a' is -1.0"),
        ({"a": (loss, math.nan)}, "weight of 'a' is nan"),
        ({"a": (loss, 1.0), "b": (st_listwise.RankNetLoss(tiny_bert()), 1.0)}, "'b' has another model"),
    ):
        with pytest.raises(ValueError, match=message):
            st_listwise.CombinedLoss(parts)  # type: ignore[arg-type]
    config = st_listwise.CombinedLoss({"a": (loss, 0.5)}, recompute=True).get_config_dict()
    assert config["recompute"] is True
    assert config["losses"]["a"]["loss"] == "ListMLELoss"
    assert json.loads(json.dumps(config)) == config


@pytest.mark.parametrize("name", ["rank.v1", "", "type", "train", "keys", "half", "training", 3])
def test_some_names_of_combined_losses_were_a_key_error_of_pytorch(name: Any) -> None:
    loss = st_listwise.ListMLELoss(tiny_bert())
    with pytest.raises(ValueError, match=f"{name!r} cannot be the name of a loss.* without a dot"):
        st_listwise.CombinedLoss({"a": (loss, 1.0), name: (loss, 1.0)})


@pytest.mark.parametrize("name", ["rank v1", "type_loss", "ListMLE(τ=1)", "losses"])
def test_any_other_name_of_a_combined_loss_is_its_key_in_the_log(name: str) -> None:
    combined = st_listwise.CombinedLoss({name: (st_listwise.ListMLELoss(tiny_bert()), 1.0)})
    assert list(combined([QUERIES, DOCS], LABELS)) == [name]


def test_a_pair_longer_than_the_token_budget_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    loss = st_listwise.ListMLELoss(tiny_bert(), mini_batch_tokens=10)
    with caplog.at_level("WARNING"):
        step(loss)
        step(loss)
    assert len(re.findall(r"A pair of \d+ tokens is longer than mini_batch_tokens=10", caplog.text)) == 1


def test_numeric_documents_have_no_tokens_that_a_budget_could_be_short_of() -> None:
    """Their attention mask was taken for that of tokens: KeyError 'input_ids'."""
    model = st_listwise.SetRankCrossEncoder(
        features=st_listwise.FeatureVectors(3), set_rank=st_listwise.SetRankConfig(width=8)
    )
    loss = st_listwise.ListMLELoss(model, mini_batch_tokens=1)
    loss([["a query"], [[[0.0, 1.0, 2.0], [1.0, 0.0, 0.5]]]], [torch.tensor([1.0, 0.0])]).backward()


def test_documents_that_are_cut_to_the_same_tokens_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Documents with a long head in common, as of one site, are one document to a model that reads the head."""
    loss = st_listwise.ListMLELoss(tiny_bert(), mini_batch_size=2)
    same_head = [f"{'x ' * 150} {tail}" for tail in ("a", "b", "c", "d")]
    with caplog.at_level("WARNING"):
        step(loss, [QUERIES, DOCS])
        assert "cut to the same" not in caplog.text
        for _ in range(2):
            step(loss, [QUERIES, [same_head, *DOCS[1:]]], [torch.arange(4.0), *LABELS[1:]])
    assert caplog.text.count("24% of the pairs of a batch (4 of 17) are cut to the same 128 tokens") == 1


# Bad input

ONE = [torch.tensor([1.0, 0.0])]
BAD: list[tuple[str, Any, Any, str]] = [
    ("one column", [["q"]], ONE, "takes two columns.*got 1 columns"),
    ("four columns", [["q"], [["a", "b"]], [1.0], [1.0]], ONE, "got 4 columns"),
    ("queries and lists", [["q", "r"], [["a", "b"]]], ONE, "2 queries and 1 lists"),
    ("no queries", [[], []], [], "0 queries"),
    ("documents as text", [["q"], ["a b"]], ONE, "documents of query 0 is str"),
    (
        "an empty list",
        [["q", "r"], [["a", "b"], []]],
        [*ONE, torch.tensor([])],
        "documents of query 1 is an empty list",
    ),
    ("a query of None", [["q", None], [["a", "b"]] * 2], ONE * 2, "query 1 is None"),
    ("an empty query", [["  "], [["a", "b"]]], ONE, "query 0 is empty text"),
    ("a document of None", [["q"], [["a", None]]], ONE, "documents of query 0, document 1 is None"),
    ("an empty document", [["q", "r"], [["a", "b"], ["", "b"]]], ONE * 2, "documents of query 1, document 0 is empty"),
    ("a number for text", [["q"], [["a", 7]]], ONE, "documents of query 0, document 1 is the number 7"),
    ("fewer labels", [["q"], [["a", "b", "c"]]], ONE, "labels of query 0: 2 labels for 3 documents"),
    ("fewer rows of labels", [["q", "r"], [["a", "b"]] * 2], ONE, "labels has 1 entries for 2 queries"),
    ("no labels", [["q"], [["a", "b"]]], None, "needs labels"),
    ("a batched tensor", [["q"], [["a", "b"]]], torch.tensor([[1.0, 0.0]]), "labels is one tensor of shape"),
    ("labels of text", [["q"], [["a", "b"]]], [["x", "y"]], "labels of query 0 is not a list of numbers"),
    ("a NaN label", [["q"], [["a", "b"]]], [torch.tensor([1.0, math.nan])], "labels of query 0, document 1 is nan"),
    (
        "an infinite label",
        [["q"], [["a", "b"]]],
        [torch.tensor([math.inf, 0])],
        "labels of query 0, document 0 is inf",
    ),
    (
        "identifiers for weights",
        [["q"], [["a", "b"]], ["x"]],
        ONE,
        "third column is taken for weights, one number a query, and could not be read as such. If it is something "
        r'else, drop it: dataset.select_columns\(\["query", "docs", "labels"\]\)\.',
    ),
    ("a list for a weight", [["q"], [["a", "b"]], [["d1", "d2"]]], ONE, "could not be read as such. .* drop it"),
    ("a negative weight", [["q"], [["a", "b"]], [-1.0]], ONE, "weight of query 0, in the third column, is -1"),
    ("two weights", [["q"], [["a", "b"]], [1.0, 2.0]], ONE, r"shape \(2,\) for 1 queries. .* drop it"),
    ("columns out of order", [["id"], ["q"], [["a", "b"]]], ONE, "documents of query 0 is str.* order: dataset.sel"),
]


@pytest.mark.parametrize(("what", "inputs", "labels", "message"), BAD, ids=[row[0] for row in BAD])
def test_bad_input_names_its_place(what: str, inputs: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        st_listwise.ListMLELoss(tiny_bert())(inputs, labels)


@pytest.mark.parametrize("name", NAMES)
def test_a_score_that_is_not_finite_names_its_place(name: str) -> None:
    model = tiny_bert()
    with torch.no_grad():
        model.model.classifier.weight.fill_(math.inf)
    with pytest.raises(ValueError, match="scores of query 0, document 0"):
        getattr(st_listwise, name)(model)([QUERIES, DOCS], LABELS)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ADRMSELoss", {"alpha": -1.0}, "alpha=-1.0"),
        ("ADRMSELoss", {"discount": "ln"}, "discount='ln'"),
        ("ApproxNDCGLoss", {"alpha": 0.0}, "alpha=0.0"),
        ("ApproxMRRLoss", {"alpha": math.inf}, "alpha=inf"),
        ("ListMLELoss", {"ties": "efron"}, "ties='efron'"),
        ("PListMLELoss", {"ties": "efron"}, "ties='efron'"),
        ("PListMLELoss", {"lambda_weight": "linear"}, "lambda_weight='linear'.*'exponential'"),
        ("PListMLELoss", {"lambda_weight": [3, 2, 1]}, r"lambda_weight=\[3, 2, 1\] is not known"),
        (
            "PListMLELoss",
            {"lambda_weight": PListMLELambdaWeight},
            "lambda_weight=<class .*LambdaWeight'> is not known",
        ),
        ("PListMLELoss", {"lambda_weight": lambda mask: torch.ones(1, 5)}, r"must return \(1, 2\) weights"),
        ("LambdaLoss", {"weighting_scheme": "ndcg9"}, "^weighting_scheme='ndcg9' is not known; .* 'ndcg2pp'"),
        ("LambdaLoss", {"weighting_scheme": NDCGLoss2Scheme}, "^weighting_scheme=<class .*NDCGLoss2Scheme'> is not"),
        ("LambdaLoss", {"k": 0}, "^k=0 must be a whole number of at least 1"),
        ("LambdaLoss", {"k": "10"}, "^k='10' must be a whole number"),
        ("LambdaLoss", {"reduction_log": "decimal"}, "^reduction_log='decimal' is not known; .* 'natural'"),
        ("RankNetLoss", {"k": 2.5}, "^k=2.5 must be a whole number"),
        ("RankNetLoss", {"reduction_log": "decimal"}, "^reduction_log='decimal' is not known; .* 'natural'"),
        ("ListMLELoss", {"top_k": 0}, "^top_k=0 must be a whole number"),
        ("ListNetLoss", {"label_temperature": -1.0}, "label_temperature=-1.0"),
        ("ListNetLoss", {"mini_batch_tokens": 0}, "mini_batch_tokens=0"),
        ("ListNetLoss", {"mini_batch_tokens": 64.0}, "mini_batch_tokens=64.0 must be a whole number"),
        ("ListNetLoss", {"mini_batch_size": 2.5}, "mini_batch_size=2.5 must be a whole number"),
        ("ListNetLoss", {"activation_fn": "os.system"}, "activation_fn='os.system'"),
        ("ListNetLoss", {"activation_fn": nn.Tanh}, r"activation_fn=<class .*Tanh'> must be a module, such as .*\(\)"),
        ("ListNetLoss", {"activation_fn": 5}, "activation_fn=5 must be a module"),
    ],
)
def test_bad_options_are_refused_when_the_loss_is_built(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(st_listwise, name)(tiny_bert(), **options)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_with_two_outputs_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} needs a model with 1 output label, got one with 2"):
        getattr(st_listwise, name)(tiny_bert(num_labels=2))


@pytest.mark.parametrize("model", ["a name", None, nn.Linear(2, 1)], ids=["name", "None", "module"])
def test_what_is_no_cross_encoder_was_an_attribute_error_about_num_labels(model: Any) -> None:
    message = (
        rf"ListMLELoss needs a CrossEncoder, got {type(model).__name__}: "
        r"CrossEncoder\(name, num_labels=1, activation_fn=torch\.nn\.Identity\(\)\)\."
    )
    with pytest.raises(ValueError, match=message):
        st_listwise.ListMLELoss(model)


@pytest.mark.parametrize(
    ("weights", "warned"),
    [
        ([[1048585, 2, 1102432, 7, 9, 11], [1048585, 5002, 1102432, 7007, 9009, 1101]], 1),
        ([[5000] * 6, [1001.5, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0], [1, 2, 3, 4, 5, 6]], 0),
    ],
    ids=["identifiers", "weights"],
)
def test_identifiers_left_in_a_third_column_silently_multiplied_the_losses_and_are_warned_about_once(
    caplog: pytest.LogCaptureFixture, weights: list[list[float]], warned: int
) -> None:
    loss = st_listwise.ListMLELoss(tiny_bert())
    for column in [*weights, *weights]:
        step(loss, [QUERIES, DOCS, column])
    assert caplog.text.count("here they are 1048585, 5002, …") == warned
    assert caplog.text.count("taken for weights") == warned
