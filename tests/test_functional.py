"""One property matrix over all functional losses, against slow references, and faults that such losses have had."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import reference
import torch
from loss_cases import CASES, Case
from torch import Tensor

from st_listwise import functional, testing
from st_listwise.functional.lists import pad_lists

MATRIX = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
UNORDERED = pytest.mark.parametrize(
    "case", [case for case in CASES if not case.input_order], ids=[case.name for case in CASES if not case.input_order]
)
LOSSES = [
    functional.adr_mse,
    functional.approx_mrr,
    functional.approx_ndcg,
    functional.attention_rank,
    functional.lambda_loss,
    functional.list_mle,
    functional.list_net,
    functional.p_list_mle,
    functional.rank_net,
]


def ragged(seed: int, any_label: bool, lists: int = 7, docs: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    """Lists of 1 to ``docs`` documents, masks with holes, and anything at all in the masked slots."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(lists, docs, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (lists, docs), generator=generator).double()
    labels[0] = torch.rand(docs, generator=generator, dtype=torch.float64) * 3  # no ties
    labels[1] = (torch.arange(docs) == seed % docs).double()  # one positive
    labels[2] = 1.0  # one label
    if any_label:
        labels[3] -= 2
    mask = torch.rand(lists, docs, generator=generator) < 0.7
    mask[:2] = True
    mask[-1] = torch.arange(docs) == 4  # one document
    garbage = torch.tensor([math.nan, math.inf, -math.inf, 1e30], dtype=torch.float64)
    scores[~mask] = garbage[torch.arange(int((~mask).sum())) % 4]
    labels[~mask] = math.nan
    return scores, labels, mask


@MATRIX
@pytest.mark.parametrize("seed", range(4))
def test_values_are_those_of_the_slow_reference(case: Case, seed: int) -> None:
    scores, labels, mask = ragged(seed, case.any_label)
    scores[4] = scores[4].round()  # some are equal
    expected = [
        case.reference(scores[row][mask[row]].tolist(), labels[row][mask[row]].tolist()) for row in range(len(mask))
    ]
    value = case.loss(scores, labels, mask)
    assert value.dtype == torch.float64
    assert value.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-11)
    assert case.loss(scores.float(), labels.float(), mask).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@MATRIX
def test_gradients_are_those_of_finite_differences(case: Case) -> None:
    scores, labels, mask = ragged(1, case.any_label, lists=5, docs=6)
    clean = torch.where(mask, scores, 0).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: case.loss(s, labels, mask), clean)


@MATRIX
def test_pairs_taken_a_few_at_a_time_change_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lists are worked off in chunks of rows: one document, or a few, at a time."""
    results = []
    for pairs in (2**18, 1, 60):
        monkeypatch.setattr("st_listwise.functional.lists.PAIRS_AT_ONCE", pairs)
        scores, labels, mask = ragged(2, case.any_label, lists=5, docs=6)
        clean = torch.where(mask, scores, 0).requires_grad_()
        value = case.loss(clean, labels, mask)
        value.sum().backward()
        results.append((value.detach(), clean.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(results[2], results[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["adr_mse", "approx_ndcg", "approx_mrr", "rank_net", "lambda_loss"])
def test_a_long_list_held_all_pairs_of_documents_at_once(name: str) -> None:
    """Several tensors of docs x docs: 1.6 GB each for 20,000 documents. What is kept no longer grows like that."""
    docs = 3000
    scores, labels = torch.randn(1, docs, requires_grad=True), torch.randint(0, 3, (1, docs)).float()
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        getattr(functional, name)(scores, labels).backward()
    assert max(kept) <= 10 * docs


@MATRIX
def test_neighbours_and_padding_change_nothing(case: Case) -> None:
    scores, labels, mask = testing.random_lists(dtype=torch.float64)
    testing.check_padding_invariance(case.loss, scores, labels, mask)
    testing.check_neighbour_invariance(case.loss, scores, labels, mask)


@UNORDERED
@pytest.mark.parametrize("tied_scores", [False, True])
def test_the_order_of_documents_changes_nothing(case: Case, tied_scores: bool) -> None:
    scores, labels, mask = testing.random_lists(dtype=torch.float64)
    if not tied_scores:
        testing.check_permutation_invariance(case.loss, scores, labels, mask)
        return
    scores = scores.round()
    order = torch.argsort(torch.rand(scores.shape), dim=-1)
    moved = case.loss(*(part.gather(-1, order) for part in (scores, labels, mask)))
    torch.testing.assert_close(moved, case.loss(scores, labels, mask))


@MATRIX
def test_a_shift_of_all_scores_changes_nothing(case: Case) -> None:
    testing.check_shift_invariance(case.loss, *testing.random_lists(dtype=torch.float64))


@MATRIX
def test_masked_slots_have_no_gradient_whatever_stands_in_them(case: Case) -> None:
    scores, labels, mask = ragged(2, case.any_label)
    scores.requires_grad_()
    case.loss(scores, labels, mask).sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert (scores.grad[~mask] == 0).all()


def _is_connected_zero(case: Case, labels: list[float], size: int) -> bool:
    scores = torch.tensor([[0.3, -1.0, 2.0]], requires_grad=True)
    value = case.loss(scores, torch.tensor([labels]), torch.arange(3)[None] < size)
    value.sum().backward()
    return value.tolist() == [0.0] and scores.grad is not None and scores.grad.tolist() == [[0.0, 0.0, 0.0]]


@MATRIX
@pytest.mark.parametrize("size", [1, 0])
def test_a_list_of_one_document_or_none_is_a_connected_zero(case: Case, size: int) -> None:
    """torch.tensor(0., requires_grad=True) leaves every parameter without a gradient, and two DDP processes hang."""
    assert _is_connected_zero(case, [2.0, 0.0, 1.0], size)


@UNORDERED
def test_a_list_of_one_label_is_a_connected_zero(case: Case) -> None:
    assert _is_connected_zero(case, [1.0, 1.0, 1.0], 3)


@MATRIX
def test_scores_far_apart_stay_finite(case: Case) -> None:
    scores = torch.tensor([[1e4, -1e4, 0.0, 9999.0, -1e4]], requires_grad=True)
    value = case.loss(scores, torch.tensor([[0.0, 2.0, 1.0, 0.0, 1.0]]))
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert torch.isfinite(scores.grad).all()


@MATRIX
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(case: Case, dtype: torch.dtype) -> None:
    scores, labels, mask = testing.random_lists(dtype=torch.float32)
    half = scores.to(dtype).requires_grad_()
    value = case.loss(half, labels.to(dtype), mask)
    assert value.dtype == torch.float32
    assert torch.equal(value, case.loss(half.detach().float(), labels, mask))
    value.sum().backward()
    assert half.grad.dtype == dtype


@MATRIX
def test_autocast_does_not_touch_the_mathematics(case: Case) -> None:
    """Gradients of approximate ranks were products of matrices in bfloat16, where backward ran inside it."""
    results = []
    for enabled in (True, False):
        scores, labels, mask = testing.random_lists(dtype=torch.float32)
        scores.requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            value = case.loss(scores, labels, mask)
            value.sum().backward()
        results.append((value.detach(), scores.grad))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-6, atol=1e-9)


@MATRIX
def test_reductions_agree(case: Case) -> None:
    scores, labels, mask = testing.random_lists()
    each = case.loss(scores, labels, mask)
    torch.testing.assert_close(case.loss(scores, labels, mask, reduction="sum"), each.sum())
    torch.testing.assert_close(case.loss(scores, labels, mask, reduction="mean"), each.mean())


@UNORDERED
def test_a_step_from_equal_scores_raises_the_better_document(case: Case) -> None:
    """A rank approximation with its sign reversed once trained a reranker to 0.097 nDCG@10."""
    labels = torch.tensor([[0.0, 2.0, 0.0]], dtype=torch.float64)
    equal = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    case.loss(equal, labels).sum().backward()
    assert equal.grad[0, 1] < 0 < equal.grad[0, 0]
    # From scores apart, as the weights of LambdaLoss jump where two documents change places.
    scores = torch.tensor([[1.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    value = case.loss(scores, labels)
    value.sum().backward()
    with torch.no_grad():
        assert case.loss(scores - 0.01 * scores.grad, labels) < value


# Ties


def test_one_positive_among_negatives_is_softmax_cross_entropy() -> None:
    scores = torch.randn(5, 8, dtype=torch.float64)
    positive = torch.tensor([0, 3, 7, 2, 5])
    labels = torch.nn.functional.one_hot(positive, 8).double()
    expected = torch.nn.functional.cross_entropy(scores, positive)
    torch.testing.assert_close(functional.list_mle(scores, labels), expected)
    torch.testing.assert_close(functional.attention_rank(scores, labels), expected)


def test_random_ties_average_to_the_mean_over_all_orders() -> None:
    scores, labels = [0.2, -1.0, 0.5, 2.0], [1.0, 0.0, 0.0, 0.0]
    orders = list(itertools.permutations(range(4)))
    exact = sum(
        reference.list_mle([scores[i] for i in order], [labels[i] for i in order], "input") for order in orders
    ) / len(orders)
    assert exact == pytest.approx(5.055186, abs=1e-6)  # reference_values.md, Plackett-Luce 3
    generator = torch.Generator().manual_seed(3)
    draws = functional.list_mle(
        torch.tensor([scores] * 20000), torch.tensor([labels] * 20000), ties="random", generator=generator
    )
    assert draws.item() == pytest.approx(exact, abs=0.02)


def test_random_ties_repeat_with_their_generator_and_differ_without() -> None:
    scores, labels = torch.randn(1, 30), torch.zeros(1, 30)
    labels[0, 0] = 1
    first, second = (
        functional.list_mle(scores, labels, ties="random", generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1)
    )
    assert first == second
    assert first != functional.list_mle(scores, labels, ties="random", generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("loss", [functional.list_mle, functional.p_list_mle])
def test_random_ties_without_a_generator_follow_torchs_seed_and_differ_by_call_and_list(
    loss: Callable[..., Tensor],
) -> None:
    scores, labels = torch.randn(1, 30).expand(2, 30), torch.zeros(2, 30)
    labels[:, 0] = 1
    draws = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        draws.append([loss(scores, labels, ties="random", reduction="none").tolist() for _ in range(2)])
    assert draws[0] == draws[1]
    assert len({value for calls in (draws[0], draws[2]) for lists in calls for value in lists}) == 8


# What has gone wrong elsewhere


def test_list_order_was_learnt_whatever_the_labels() -> None:
    """[0, 1, 2] and [2, 1, 0] gave the same loss."""
    scores = torch.tensor([[1.5, 0.3, -1.0]])
    wrong, right = (functional.list_mle(scores, torch.tensor([row])) for row in ([0.0, 1.0, 2.0], [2.0, 1.0, 0.0]))
    assert wrong > right


def test_a_short_list_kept_a_hundredth_of_its_gradient_beside_a_long_one() -> None:
    """Averages over all documents or pairs of the batch let long lists silence short ones."""
    for loss in (functional.adr_mse, functional.rank_net, functional.lambda_loss):
        short = torch.tensor([[0.0, 1.0]], requires_grad=True)
        loss(short, torch.tensor([[1.0, 0.0]])).backward()
        both = torch.zeros(2, 100)
        both[0, 1] = 1.0
        both.requires_grad_()
        labels = torch.arange(100.0).flip(0).div(10).repeat(2, 1)
        labels[0, :2] = torch.tensor([1.0, 0.0])
        mask = torch.ones(2, 100, dtype=torch.bool)
        mask[0, 2:] = False
        loss(both, labels, mask).backward()
        torch.testing.assert_close(both.grad[0, :2], short.grad[0] / 2)


def test_an_unstable_sort_ranked_ties_by_chance() -> None:
    """Above 16 elements the default sort is not stable."""
    scores = torch.randn(1, 500, dtype=torch.float64)
    labels = (torch.arange(500) % 2).double()[None]
    expected = reference.list_mle(scores[0].tolist(), labels[0].tolist(), "input")
    assert functional.list_mle(scores, labels, ties="input").item() == pytest.approx(expected)


@pytest.mark.parametrize("n", [128, 1000])
def test_p_list_mle_weights_of_long_lists_were_infinite(n: int) -> None:
    weights = functional.p_list_mle_weights(torch.tensor([[n]]), n)[0]
    assert weights[:3].tolist() == pytest.approx([0.5, 0.25, 0.125])  # reference_values.md, Plackett-Luce 4
    assert weights.sum().item() == pytest.approx(1.0)
    value = functional.p_list_mle(torch.zeros(1, n), torch.arange(float(n))[None])
    assert torch.isfinite(value)


def test_rank_net_lost_the_gradient_of_pairs_far_out_of_order() -> None:
    scores = torch.tensor([[0.0, 30.0]], requires_grad=True)
    functional.rank_net(scores, torch.tensor([[1.0, 0.0]])).backward()
    assert scores.grad[0].tolist() == pytest.approx([-1.4427, 1.4427], abs=1e-4)


def test_a_relevant_document_outside_the_top_k_got_no_gradient() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.0]], requires_grad=True)
    functional.lambda_loss(scores, torch.tensor([[0.0, 0.0, 0.0, 1.0]]), top_k=1).backward()
    assert scores.grad[0, 3] < 0


def test_list_net_pushes_a_binary_positive_down_unless_the_target_is_sharpened() -> None:
    """Known and kept: the target of the positive of ten is 23%, see the docstring."""
    gradients = []
    for temperature in (1.0, 0.1):
        scores = torch.zeros(1, 10)
        scores[0, 0] = 2.0
        scores.requires_grad_()
        labels = torch.zeros(1, 10)
        labels[0, 0] = 1.0
        functional.list_net(scores, labels, label_temperature=temperature).backward()
        gradients.append(scores.grad[0, 0].item())
    assert gradients[0] > 0 > gradients[1]


def test_adr_mse_grows_with_the_square_of_the_list_unless_normalised() -> None:
    values = {}
    for n, normalize in itertools.product((2, 1000), (False, True)):
        labels = torch.arange(float(n)).flip(0)[None].double()
        values[n, normalize] = functional.adr_mse(torch.zeros(1, n).double(), labels, normalize=normalize).item()
    assert values[1000, False] == pytest.approx(11540, abs=1)  # DESIGN: 0.2 at 2 documents, 11,540 at 1,000
    assert values[2, False] == pytest.approx(0.204, abs=1e-3)
    assert values[1000, True] < values[2, True]


# Bad input

OK = (torch.tensor([[0.5, 1.0]]), torch.tensor([[1.0, 0.0]]))
NAN, INF = torch.tensor([[0.5, math.nan]]), torch.tensor([[0.5, math.inf]])
BAD: list[tuple[str, tuple[Any, ...], str]] = [
    ("a NaN score", (NAN, OK[1]), "scores of query 0, document 1 is nan"),
    ("an infinite score", (INF, OK[1]), "scores of query 0, document 1 is inf"),
    ("a NaN label", (OK[0], NAN), "labels of query 0, document 1 is nan"),
    ("one dimension", (OK[0][0], OK[1][0]), r"\(lists, docs\)"),
    ("other shapes", (OK[0], torch.zeros(1, 3)), r"labels have shape \(1, 3\), scores \(1, 2\)"),
    ("lists of numbers", ([[0.5, 1.0]], OK[1]), r"scores is list, expected a \(lists, docs\) tensor"),
    ("labels of numpy", (OK[0], OK[1].numpy()), r"labels is ndarray, expected a \(lists, docs\) tensor"),
    ("no lists", (torch.zeros(0, 2), torch.zeros(0, 2)), "at least one"),
    ("a mask of numbers", (*OK, torch.ones(1, 2)), "mask must be bool"),
]


@pytest.mark.parametrize(("what", "arguments", "message"), BAD, ids=[row[0] for row in BAD])
@pytest.mark.parametrize("loss", LOSSES)
def test_bad_input_is_named(loss: Callable[..., Tensor], what: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss(*arguments)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        *((name, {"reduction": "avg"}, "reduction='avg'.*'none', 'sum', 'mean'") for name in ("list_mle", "adr_mse")),
        ("list_mle", {"ties": "efron"}, "ties='efron'.*'breslow', 'random', 'input'"),
        ("list_mle", {"top_k": 0}, "top_k=0"),
        ("p_list_mle", {"weights": torch.tensor([1.0, -1.0])}, "weights of query 0, position 1 is -1"),
        ("p_list_mle", {"weights": torch.ones(3)}, r"weights have shape \(3,\)"),
        ("list_net", {"label_temperature": 0.0}, "label_temperature=0.0"),
        ("adr_mse", {"alpha": -1.0}, "alpha=-1.0 must be a finite number above 0"),
        ("adr_mse", {"discount": "log10"}, "discount='log10'"),
        ("approx_ndcg", {"alpha": math.nan}, "alpha=nan"),
        ("approx_ndcg", {"gain": "cubic"}, "gain='cubic'"),
        ("approx_mrr", {"alpha": 0}, "alpha=0"),
        ("rank_net", {"sigma": -2.0}, "sigma=-2.0"),
        ("lambda_loss", {"weighting": "ndcg3"}, "weighting='ndcg3'"),
        ("lambda_loss", {"mu": 0.0}, "mu=0.0"),
    ],
)
def test_bad_options_are_quoted(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(functional, name)(*OK, **options)


def test_equal_scores_stand_in_the_worst_order() -> None:
    """Of two documents the relevant one stands second: of 4 pairs its 2 weigh 1 / log2(3), the others nothing."""
    value = functional.lambda_loss(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), weighting="ndcg1")
    assert value.item() == pytest.approx(2 / math.log2(3) / 4, rel=1e-6)


@pytest.mark.parametrize(("label", "eps"), [(1.0, 1.0), (1.0, 4.0), (3.0, 5.0), (3.0, 20.0)])
def test_the_smallest_ideal_dcg_was_that_of_gains_scaled_by_the_largest(label: float, eps: float) -> None:
    """One relevant document below another one: the pair weighs its gain over its ideal DCG, 2^y - 1, or over eps."""
    scores, labels = torch.tensor([[0.0, 1.0]]), torch.tensor([[label, 0.0]])
    share = (2**label - 1) / max(2**label - 1, eps)
    swap = (1 - 1 / math.log2(3)) * share
    value = functional.lambda_loss(scores, labels, weighting="lambdarank", eps=eps)
    assert value.item() == pytest.approx(swap * math.log2(1 + math.e), rel=1e-6)


@pytest.mark.parametrize("name", ["approx_ndcg", "lambda_loss"])
@pytest.mark.parametrize("label", [1e-8, 1e-7, 1e-4, 0.1])
def test_the_exponential_gain_of_a_tiny_label_was_zero(name: str, label: float) -> None:
    """Two relevant documents of labels y and 2y have gains of a ratio of 2, as y falls, whatever y is."""
    loss = getattr(functional, name)
    scores = torch.tensor([[0.3, -0.2, 1.0]], requires_grad=True)
    labels = torch.tensor([[label, 2 * label, 0.0]])
    options = {"eps": 0.0} if name == "lambda_loss" else {}
    value = loss(scores, labels, **options)
    exact = math.expm1(label * math.log(2)), math.expm1(2 * label * math.log(2)), 0.0
    linear = loss(scores, torch.tensor([exact]), gain="linear", **options)
    assert value.item() == pytest.approx(linear.item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(value, scores)
    (expected,) = torch.autograd.grad(linear, scores)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-7)


def test_documents_are_laid_out_by_lists_and_taken_out_again() -> None:
    values, lengths = torch.arange(6.0), [2, 0, 3, 1]
    mask = functional.length_mask(lengths)
    padded = functional.pad_lists(values, lengths, fill=9.0)
    assert padded.tolist() == [[0, 1, 9], [9, 9, 9], [2, 3, 4], [5, 9, 9]]
    assert [own.tolist() for own in functional.unpad_lists(padded, mask)] == [[0, 1], [], [2, 3, 4], [5]]
    holes = torch.tensor([[True, False, True], [False, False, True]])
    assert [own.tolist() for own in functional.unpad_lists(padded[[0, 2]], holes)] == [[0, 9], [4]]


@pytest.mark.parametrize("lengths", [[1, 2], [3, 3], [], [6, -1]])
def test_documents_beyond_the_lengths_were_dropped(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="add up to 5 documents, not to"):
        pad_lists(torch.arange(5.0), lengths)


@pytest.mark.parametrize(
    ("weighting", "message"),
    [
        (lambda *_: math.inf, "inf for query 1, positions 2 and 1 of the model's order"),
        (lambda gain, *_: gain[:, :, None] / gain[:, None, :] * math.nan, "nan for query 1, positions 2 and 1"),
        (lambda gain, *_: torch.ones(1, 5, 5), r"shape \(1, 5, 5\) for query 0.* broadcast to \(1, 2, 2\)"),
        (lambda gain, *_: torch.ones(2, 2, 2), r"shape \(2, 2, 2\) for query 0"),
    ],
)
def test_a_weighting_of_weights_that_cannot_be_used_names_the_query(weighting: Any, message: str) -> None:
    """The first query has one label, so that none of its pairs counts."""
    scores, labels = torch.tensor([[0.0, 1.0, 9.0]] * 2), torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False]] * 2)
    with pytest.raises(ValueError, match=message):
        functional.lambda_loss(scores, labels, mask, weighting=weighting)


@pytest.mark.parametrize("name", ["approx_ndcg", "lambda_loss"])
@pytest.mark.parametrize(("labels", "place"), [([1.0, -0.5], 1), ([128.0, 0.0], 0)])
def test_labels_outside_the_gain_are_refused_rather_than_nan(name: str, labels: list[float], place: int) -> None:
    """2^128 is infinite in float32, and the gain of a negative label was silently 0."""
    with pytest.raises(ValueError, match=f"labels of query 0, document {place}"):
        getattr(functional, name)(torch.tensor([[0.0, 1.0]]), torch.tensor([labels]))


def test_the_largest_label_that_is_allowed_is_finite_in_float32() -> None:
    scores, labels = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[127.9, 127.0, 0.0]])
    expected = reference.lambda_loss(scores[0].tolist(), labels[0].tolist())
    assert functional.lambda_loss(scores, labels).item() == pytest.approx(expected, rel=1e-4)
