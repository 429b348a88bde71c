"""Slow references in plain Python floats: one unpadded list in, one number out. Written from the definitions alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

Numbers = Sequence[float]


def by_label(labels: Numbers) -> list[int]:
    """Indices of documents, best label first; equal labels keep their order."""
    return sorted(range(len(labels)), key=lambda i: -labels[i])


def log_sum_exp(values: Numbers) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def softmax(values: Numbers) -> list[float]:
    total = log_sum_exp(values)
    return [math.exp(value - total) for value in values]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x >= 0 else x - math.log1p(math.exp(x))


def teaches(labels: Numbers) -> bool:
    return len(set(labels)) > 1


def plackett_luce(scores: Numbers, labels: Numbers, weights: Numbers, ties: str) -> float:
    order = by_label(labels)
    if ties == "input":
        return sum(
            weights[i] * (log_sum_exp([scores[j] for j in order[i:]]) - scores[order[i]]) for i in range(len(order))
        )
    if not teaches(labels):
        return 0.0
    total = 0.0
    for document in range(len(labels)):
        if labels[document] == min(labels):
            continue  # nobody knows the order inside the lowest group
        places = [i for i, other in enumerate(order) if labels[other] == labels[document]]
        weight = sum(weights[i] for i in places) / len(places)
        choice_set = [scores[j] for j in range(len(labels)) if labels[j] <= labels[document]]
        total += weight * (log_sum_exp(choice_set) - scores[document])
    return total


def list_mle(scores: Numbers, labels: Numbers, ties: str = "breslow", top_k: int | None = None) -> float:
    return plackett_luce(scores, labels, [float(top_k is None or i < top_k) for i in range(len(scores))], ties)


def p_list_mle(scores: Numbers, labels: Numbers, ties: str = "breslow", weights: Numbers | None = None) -> float:
    n = len(scores)
    chosen = [2.0 ** (n - i) - 1 for i in range(1, n + 1)] if weights is None else list(weights[:n])
    total = sum(chosen)
    return plackett_luce(scores, labels, [weight / total if total else 0.0 for weight in chosen], ties)


def list_net(scores: Numbers, labels: Numbers, label_temperature: float = 1.0) -> float:
    if not teaches(labels):
        return 0.0
    target = softmax([label / label_temperature for label in labels])
    return sum(share * (log_sum_exp(scores) - score) for share, score in zip(target, scores))


def attention_rank(scores: Numbers, labels: Numbers) -> float:
    attention = [math.exp(label) if label > 0 else 0.0 for label in labels]
    if not teaches(labels) or sum(attention) == 0:
        return 0.0
    return sum(a / sum(attention) * (log_sum_exp(scores) - score) for a, score in zip(attention, scores))


def approx_ranks(scores: Numbers, alpha: float = 1.0) -> list[float]:
    return [
        1 + sum(sigmoid(alpha * (other - own)) for j, other in enumerate(scores) if j != i)
        for i, own in enumerate(scores)
    ]


def label_ranks(labels: Numbers) -> list[float]:
    ranks = []
    for own in labels:
        better = sum(other > own for other in labels)
        equal = sum(other == own for other in labels)
        ranks.append(sum(range(better + 1, better + equal + 1)) / equal)
    return ranks


def adr_mse(
    scores: Numbers, labels: Numbers, alpha: float = 1.0, discount: str = "log2", normalize: bool = False
) -> float:
    if not teaches(labels):
        return 0.0
    weigh = {"log2": lambda r: 1 / math.log2(1 + r), "reciprocal": lambda r: 1 / r, "none": lambda r: 1.0}[discount]
    scale = len(scores) - 1 if normalize else 1
    pairs = zip(label_ranks(labels), approx_ranks(scores, alpha))
    return sum(weigh(rank) * ((rank - approx) / scale) ** 2 for rank, approx in pairs) / len(scores)


def gains(labels: Numbers, gain: str) -> list[float]:
    return [2.0**label - 1 if gain == "exponential" else label for label in labels]


def max_dcg(labels: Numbers, gain: str, top_k: int | None) -> float:
    ideal = sorted(gains(labels, gain), reverse=True)[:top_k]
    return sum(value / math.log2(2 + i) for i, value in enumerate(ideal))


def approx_ndcg(
    scores: Numbers, labels: Numbers, alpha: float = 1.0, top_k: int | None = None, gain: str = "exponential"
) -> float:
    if not teaches(labels):
        return 0.0
    dcg = 0.0
    for value, rank in zip(gains(labels, gain), approx_ranks(scores, alpha)):
        inside = 1.0 if top_k is None else sigmoid(alpha * (top_k + 0.5 - rank))
        dcg += inside * value / math.log2(1 + rank)
    return 1 - dcg / max_dcg(labels, gain, top_k)


def approx_mrr(scores: Numbers, labels: Numbers, alpha: float = 1.0) -> float:
    if not teaches(labels) or max(labels) <= 0:
        return 0.0
    ranks = approx_ranks(scores, alpha)
    return 1 - max(1 / rank for rank, label in zip(ranks, labels) if label > 0)


def lambda_loss(
    scores: Numbers,
    labels: Numbers,
    weighting: str = "ndcg2pp",
    top_k: int | None = None,
    sigma: float = 1.0,
    mu: float = 10.0,
    gain: str = "exponential",
    log_base: str = "binary",
    eps: float = 0.0,
) -> float:
    if not teaches(labels):
        return 0.0
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], labels[i]))  # equal scores: the worse label first
    n, cut = len(order), top_k or len(order)
    ideal = 1.0 if weighting == "none" else max(max_dcg(labels, gain, top_k), eps)
    share = [value / ideal for value in gains(labels, gain)]
    inverse = [1 / math.log2(2 + place) for place in range(n + 1)]
    total, count = 0.0, 0
    for a, i in enumerate(order):
        for b, j in enumerate(order):
            if min(a, b) >= cut or not (weighting == "ndcg1" or labels[i] > labels[j]):
                continue
            count += 1
            apart = abs(a - b)
            step = inverse[apart - 1] - inverse[apart] if apart else 0.0
            change = abs(share[i] - share[j])
            weight = {
                "none": 1.0,
                "ndcg1": share[i] * inverse[a],
                "ndcg2": step * change,
                "lambdarank": abs(inverse[a] - inverse[b]) * change,
                "ndcg2pp": (mu * step + abs(inverse[a] - inverse[b])) * change,
            }[weighting]
            total -= weight * log_sigmoid(sigma * (scores[i] - scores[j]))
    return total / max(count, 1) / (math.log(2) if log_base == "binary" else 1.0)


def rank_net(
    scores: Numbers, labels: Numbers, sigma: float = 1.0, top_k: int | None = None, log_base: str = "binary"
) -> float:
    return lambda_loss(scores, labels, "none", top_k, sigma, log_base=log_base)
