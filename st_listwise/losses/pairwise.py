"""Losses on ordered pairs of one list: RankNetLoss, LambdaLoss."""

from __future__ import annotations

from typing import Any, Literal

from sentence_transformers.cross_encoder import CrossEncoder
from sentence_transformers.cross_encoder.losses import (
    LambdaRankScheme,
    NDCGLoss1Scheme,
    NDCGLoss2PPScheme,
    NDCGLoss2Scheme,
    NoWeightingScheme,
)
from torch import Tensor, nn
from typing_extensions import Unpack

from st_listwise import functional
from st_listwise.functional.approx_rank import Gain
from st_listwise.functional.lists import check_choice, check_top_k
from st_listwise.functional.pairwise import LOG_BASES, WEIGHTINGS, LogBase, Weighting, WeightingFunction
from st_listwise.losses.base import ListwiseLoss, ScoringOptions, dotted_name

#: sentence-transformers' weighting schemes and their names here.
SCHEMES: dict[type, Weighting] = {
    NoWeightingScheme: "none",
    NDCGLoss1Scheme: "ndcg1",
    NDCGLoss2Scheme: "ndcg2",
    LambdaRankScheme: "lambdarank",
    NDCGLoss2PPScheme: "ndcg2pp",
}


class LambdaLoss(ListwiseLoss):
    r"""LambdaLoss: pairs of documents, weighted by their effect on nDCG.

    .. math:: \ell(s, y) = -\frac{1}{|P|} \sum_{(i, j) \in P} w_{ij} \log_2 \sigma\big(\sigma_0 (s_i - s_j)\big)

    with P the pairs of documents whose first has the larger label, :math:`w_{ij}` the weight that ``weighting_scheme``
    gives a pair (its formulas are in :func:`st_listwise.functional.lambda_loss`), :math:`\sigma` the logistic function
    and :math:`\sigma_0` the option ``sigma``.

    Args:
        model: CrossEncoder with one output label.
        weighting_scheme: "ndcg2pp" (default), "ndcg2", "lambdarank", "ndcg1", "none", or sentence-transformers' scheme
            objects, or a function as in :func:`st_listwise.functional.lambda_loss`. None: "none".
        k: nDCG@k: pairs with at least one document among the model's first k. Default: all.
        sigma: Scale of score differences, above 0.
        eps: Smallest ideal DCG to divide by.
        reduction_log: "binary" or "natural" logarithm.
        activation_fn: Applied to the scores before the loss. Default: none.
        mini_batch_size: See :class:`~st_listwise.losses.ListwiseLoss`; likewise ``mini_batch_tokens``,
            ``recompute``, ``share_prefix``.
        mu: Weight of "ndcg2" in "ndcg2pp".
        gain: "exponential": :math:`2^y - 1`, labels from 0 to below 128; "linear": y.

    References:
        - The LambdaLoss Framework for Ranking Metric Optimization: https://doi.org/10.1145/3269206.3271784

    Requirements:
        1. A query with several documents
        2. One label a document, not negative; larger is better

    Inputs:
        +--------------------------------+-------------------------------+-------------------------------+
        | Inputs                         | Labels                        | Number of Model Output Labels |
        +================================+===============================+===============================+
        | (query, [doc1, ..., docN])     | [label1, ..., labelN]         | 1                             |
        +--------------------------------+-------------------------------+-------------------------------+

    Recommendations:
        - Graded labels. Teacher scores can be negative or large: shift them to start at 0 and set ``gain="linear"``, or
          use :class:`RankNetLoss`, which looks at their order only.

    Relations:
        - sentence-transformers' class of this name averages over all pairs of the *batch*, so that the pairs of long
          lists outnumber those of short ones; here each list is averaged first. For one list the values agree.
        - Negative labels and labels of 128 or more, which give no gradient and NaN there, are refused here.

    Example:
        ::

            loss = LambdaLoss(model, k=10)
    """

    def __init__(
        self,
        model: CrossEncoder,
        weighting_scheme: nn.Module | WeightingFunction | Weighting | None = "ndcg2pp",
        k: int | None = None,
        sigma: float = 1.0,
        eps: float = 1e-10,
        reduction_log: LogBase = "binary",
        activation_fn: nn.Module | str | None = None,
        mini_batch_size: int | None = None,
        *,
        mu: float = 10.0,
        gain: Gain = "exponential",
        **scoring: Unpack[ScoringOptions],
    ) -> None:
        super().__init__(model, activation_fn, mini_batch_size, **scoring)
        if type(weighting_scheme) is NDCGLoss2PPScheme:
            mu = weighting_scheme.mu
        self.weighting_scheme = SCHEMES.get(type(weighting_scheme), weighting_scheme) or "none"
        if isinstance(self.weighting_scheme, type) or not callable(self.weighting_scheme):
            check_choice("weighting_scheme", self.weighting_scheme, WEIGHTINGS)
        _check_options(k, reduction_log)
        self.k = k
        self.sigma = sigma
        self.eps = eps
        self.reduction_log = reduction_log
        self.mu = mu
        self.gain = gain
        self.check_options()

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return functional.lambda_loss(
            scores,
            labels,
            mask,
            weighting=self.weighting_scheme,
            top_k=self.k,
            sigma=self.sigma,
            mu=self.mu,
            gain=self.gain,
            log_base=self.reduction_log,
            eps=self.eps,
            reduction="none",
        )

    def get_config_dict(self) -> dict[str, Any]:
        named = isinstance(self.weighting_scheme, str)
        return {
            "weighting_scheme": self.weighting_scheme if named else dotted_name(self.weighting_scheme),
            "k": self.k,
            "sigma": self.sigma,
            "eps": self.eps,
            "reduction_log": self.reduction_log,
            "mu": self.mu,
            "gain": self.gain,
        } | super().get_config_dict()

    @property
    def citation(self) -> str:
        return """
@inproceedings{wang2018lambdaloss,
    title={The LambdaLoss Framework for Ranking Metric Optimization},
    author={Wang, Xuanhui and Li, Cheng and Golbandi, Nadav and Bendersky, Michael and Najork, Marc},
    booktitle={Proceedings of the 27th ACM International Conference on Information and Knowledge Management},
    pages={1313--1322},
    year={2018},
    doi={10.1145/3269206.3271784},
}
"""


class RankNetLoss(ListwiseLoss):
    r"""RankNet: logistic loss of every pair of documents with different labels.

    .. math:: \ell(s, y) = \frac{1}{|P|} \sum_{(i, j) \in P} \log_2 \big(1 + e^{-\sigma (s_i - s_j)}\big), \qquad
              P = \{(i, j) : y_i > y_j\}

    Args:
        model: CrossEncoder with one output label.
        k: Keep the pairs of which at least one document is among the model's first k. Default: all.
        sigma: Scale of score differences, above 0.
        eps: Not used; sentence-transformers' argument of this name, kept in its place.
        reduction_log: "binary" or "natural" logarithm.
        activation_fn: Applied to the scores before the loss. Default: none.
        mini_batch_size: See :class:`~st_listwise.losses.ListwiseLoss`; likewise ``mini_batch_tokens``,
            ``recompute``, ``share_prefix``.

    References:
        - Learning to Rank using Gradient Descent: https://doi.org/10.1145/1102351.1102363

    Requirements:
        1. A query with several documents
        2. One label a document, of which only the order counts; any sign and scale

    Inputs:
        +--------------------------------+-------------------------------+-------------------------------+
        | Inputs                         | Labels                        | Number of Model Output Labels |
        +================================+===============================+===============================+
        | (query, [doc1, ..., docN])     | [label1, ..., labelN]         | 1                             |
        +--------------------------------+-------------------------------+-------------------------------+

    Recommendations:
        - Robust, and good for a teacher's ranking. It counts errors at the bottom of a list as much as at the top.

    Relations:
        - :class:`LambdaLoss` weighs the pairs by their effect on nDCG.
        - sentence-transformers' class of this name averages over all pairs of the *batch*; here each list is averaged
          first. For one list the values agree.

    Example:
        ::

            loss = RankNetLoss(model)
    """

    def __init__(
        self,
        model: CrossEncoder,
        k: int | None = None,
        sigma: float = 1.0,
        eps: float = 1e-10,
        reduction_log: Literal["natural", "binary"] = "binary",
        activation_fn: nn.Module | str | None = None,
        mini_batch_size: int | None = None,
        **scoring: Unpack[ScoringOptions],
    ) -> None:
        super().__init__(model, activation_fn, mini_batch_size, **scoring)
        _check_options(k, reduction_log)
        self.k = k
        self.sigma = sigma
        self.eps = eps
        self.reduction_log = reduction_log
        self.check_options()

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return functional.rank_net(
            scores, labels, mask, sigma=self.sigma, top_k=self.k, log_base=self.reduction_log, reduction="none"
        )

    def get_config_dict(self) -> dict[str, Any]:
        own = {"k": self.k, "sigma": self.sigma, "eps": self.eps, "reduction_log": self.reduction_log}
        return own | super().get_config_dict()

    @property
    def citation(self) -> str:
        return """
@inproceedings{burges2005learning,
    title={Learning to Rank using Gradient Descent},
    author={Burges, Chris and Shaked, Tal and Renshaw, Erin and Lazier, Ari and Deeds, Matt and Hamilton, Nicole and Hullender, Greg},
    booktitle={Proceedings of the 22nd International Conference on Machine Learning},
    pages={89--96},
    year={2005},
    doi={10.1145/1102351.1102363},
}
"""


def _check_options(k: int | None, reduction_log: str) -> None:
    """Under the names that they have here; those of the functions are others."""
    check_top_k(k, "k")
    check_choice("reduction_log", reduction_log, LOG_BASES)
