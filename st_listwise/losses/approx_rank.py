"""Losses on differentiable ranks: ADRMSELoss, ApproxNDCGLoss, ApproxMRRLoss."""

from __future__ import annotations

from typing import Any

from sentence_transformers.cross_encoder import CrossEncoder
from torch import Tensor, nn
from typing_extensions import Unpack

from st_listwise import functional
from st_listwise.functional.approx_rank import Discount, Gain
from st_listwise.losses.base import ListwiseLoss, ScoringOptions


class ADRMSELoss(ListwiseLoss):
    r"""ADR-MSE: discounted squared error between approximate and true ranks.

    .. math:: \ell(s, y) = \frac{1}{n} \sum_i d(r_i) \, (r_i - \hat\pi_i)^2, \qquad
              \hat\pi_i = 1 + \sum_{j \neq i} \sigma\big(\alpha (s_j - s_i)\big)

    with :math:`r_i` the rank of document i by its label, :math:`\hat\pi_i` that by its score, approximated with the
    logistic function :math:`\sigma`, and d the ``discount``.

    Args:
        model: CrossEncoder with one output label.
        alpha: Steepness of the rank approximation, above 0. Default: 1, the paper's.
        activation_fn: Applied to the scores before the loss. Default: none.
        mini_batch_size: See :class:`~st_listwise.losses.ListwiseLoss`; likewise ``mini_batch_tokens``,
            ``recompute``, ``share_prefix``.
        discount: Weight of true rank r: "log2" :math:`1 / \log_2(1 + r)`, the paper's; "reciprocal"; "none".
        normalize: Divide rank differences by n - 1, so that long lists do not outweigh short ones.

    References:
        - Rank-DistiLLM: Closing the Effectiveness Gap Between Cross-Encoders and LLMs for Passage Re-Ranking: https://arxiv.org/abs/2405.07920

    Requirements:
        1. A query with several documents
        2. One label a document, of which only the order counts; equal labels share their average rank

    Inputs:
        +--------------------------------+-------------------------------+-------------------------------+
        | Inputs                         | Labels                        | Number of Model Output Labels |
        +================================+===============================+===============================+
        | (query, [doc1, ..., docN])     | [label1, ..., labelN]         | 1                             |
        +--------------------------------+-------------------------------+-------------------------------+

    Recommendations:
        - Made for full rankings by a teacher. The loss grows with the square of the list's length: with lists of very
          different lengths set ``normalize=True``.

    Relations:
        - sentence-transformers' class of this name averages over all documents of the *batch*, so that a list of 2
          beside one of 100 keeps 4% of its gradient; here each list is averaged first. For one list the values agree.

    Example:
        ::

            loss = ADRMSELoss(model)
    """

    def __init__(
        self,
        model: CrossEncoder,
        alpha: float = 1.0,
        activation_fn: nn.Module | str | None = None,
        mini_batch_size: int | None = None,
        *,
        discount: Discount = "log2",
        normalize: bool = False,
        **scoring: Unpack[ScoringOptions],
    ) -> None:
        super().__init__(model, activation_fn, mini_batch_size, **scoring)
        self.alpha = alpha
        self.discount = discount
        self.normalize = normalize
        self.check_options()

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return functional.adr_mse(
            scores,
            labels,
            mask,
            alpha=self.alpha,
            discount=self.discount,
            normalize=self.normalize,
            reduction="none",
        )

    def get_config_dict(self) -> dict[str, Any]:
        own = {"alpha": self.alpha, "discount": self.discount, "normalize": self.normalize}
        return own | super().get_config_dict()

    @property
    def citation(self) -> str:
        return """
@inproceedings{schlatt2025rankdistillm,
    title={Rank-DistiLLM: Closing the Effectiveness Gap Between Cross-Encoders and LLMs for Passage Re-ranking},
    author={Schlatt, Ferdinand and Fr{\\"o}be, Maik and Scells, Harrisen and Zhuang, Shengyao and Koopman, Bevan and Zuccon, Guido and Stein, Benno and Potthast, Martin and Hagen, Matthias},
    booktitle={Advances in Information Retrieval (ECIR 2025)},
    year={2025},
    doi={10.1007/978-3-031-88714-7_31},
}
"""


class ApproxNDCGLoss(ListwiseLoss):
    r"""ApproxNDCG: one minus nDCG at approximate ranks.

    .. math:: \ell(s, y) = 1 - \frac{1}{\mathrm{maxDCG}} \sum_i \frac{G(y_i)}{\log_2(1 + \hat\pi_i)}

    with G the ``gain``, :math:`\hat\pi_i` the approximate rank of document i as in :class:`ADRMSELoss`, and maxDCG the
    sum of the best order.

    Args:
        model: CrossEncoder with one output label.
        alpha: Steepness of the rank approximation, above 0. Default: 5. On WikiQA (MiniLM-L6, 2 epochs) dev MAP for
            alpha 1, 2, 5, 10 was .732, .741, .751, .741 with seed 12, and .751, .760 for 5, 10 with seed 13; test MAP
            .679, .698, .708, .709, and .697, .701. The function's default is 1.
        activation_fn: Applied to the scores before the loss. Default: none.
        mini_batch_size: See :class:`~st_listwise.losses.ListwiseLoss`; likewise ``mini_batch_tokens``,
            ``recompute``, ``share_prefix``.
        top_k: Cut-off of the metric, approximated smoothly. Default: the whole list.
        gain: "exponential": :math:`2^y - 1`, labels from 0 to below 128; "linear": y.

    References:
        - A General Approximation Framework for Direct Optimization of Information Retrieval Measures: https://doi.org/10.1007/s10791-009-9124-x
        - Revisiting Approximate Metric Optimization in the Age of Deep Neural Networks: https://doi.org/10.1145/3331184.3331347

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
        - When nDCG of graded labels is the aim. Documents whose scores lie far apart have almost no gradient, the more
          so the larger alpha is.

    Relations:
        - :class:`LambdaLoss` bounds the same metric by weighted pairs; :class:`ApproxMRRLoss` is for one relevant
          document a query.

    Example:
        ::

            loss = ApproxNDCGLoss(model, top_k=10)
    """

    def __init__(
        self,
        model: CrossEncoder,
        alpha: float = 5.0,
        activation_fn: nn.Module | str | None = None,
        mini_batch_size: int | None = None,
        *,
        top_k: int | None = None,
        gain: Gain = "exponential",
        **scoring: Unpack[ScoringOptions],
    ) -> None:
        super().__init__(model, activation_fn, mini_batch_size, **scoring)
        self.alpha = alpha
        self.top_k = top_k
        self.gain = gain
        self.check_options()

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return functional.approx_ndcg(
            scores, labels, mask, alpha=self.alpha, top_k=self.top_k, gain=self.gain, reduction="none"
        )

    def get_config_dict(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "top_k": self.top_k, "gain": self.gain} | super().get_config_dict()

    @property
    def citation(self) -> str:
        return """
@article{qin2010general,
    title={A General Approximation Framework for Direct Optimization of Information Retrieval Measures},
    author={Qin, Tao and Liu, Tie-Yan and Li, Hang},
    journal={Information Retrieval},
    volume={13},
    number={4},
    pages={375--397},
    year={2010},
    doi={10.1007/s10791-009-9124-x},
}
"""


class ApproxMRRLoss(ListwiseLoss):
    r"""ApproxMRR: one minus the reciprocal of the first relevant document's approximate rank.

    .. math:: \ell(s, y) = 1 - \max_{i: y_i > 0} \frac{1}{\hat\pi_i}

    with :math:`\hat\pi_i` the approximate rank of document i as in :class:`ADRMSELoss`.

    Args:
        model: CrossEncoder with one output label.
        alpha: Steepness of the rank approximation, above 0. Default: 1.
        activation_fn: Applied to the scores before the loss. Default: none.
        mini_batch_size: See :class:`~st_listwise.losses.ListwiseLoss`; likewise ``mini_batch_tokens``,
            ``recompute``, ``share_prefix``.

    References:
        - A General Approximation Framework for Direct Optimization of Information Retrieval Measures: https://doi.org/10.1007/s10791-009-9124-x

    Requirements:
        1. A query with several documents
        2. One label a document, above 0 for relevant

    Inputs:
        +--------------------------------+-------------------------------+-------------------------------+
        | Inputs                         | Labels                        | Number of Model Output Labels |
        +================================+===============================+===============================+
        | (query, [doc1, ..., docN])     | [label1, ..., labelN]         | 1                             |
        +--------------------------------+-------------------------------+-------------------------------+

    Recommendations:
        - For one relevant document a query, such as question answering. Of several only the best placed is raised.

    Relations:
        - :class:`ApproxNDCGLoss` counts every relevant document, by grade.

    Example:
        ::

            loss = ApproxMRRLoss(model)
    """

    def __init__(
        self,
        model: CrossEncoder,
        alpha: float = 1.0,
        activation_fn: nn.Module | str | None = None,
        mini_batch_size: int | None = None,
        **scoring: Unpack[ScoringOptions],
    ) -> None:
        super().__init__(model, activation_fn, mini_batch_size, **scoring)
        self.alpha = alpha
        self.check_options()

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return functional.approx_mrr(scores, labels, mask, alpha=self.alpha, reduction="none")

    def get_config_dict(self) -> dict[str, Any]:
        return {"alpha": self.alpha} | super().get_config_dict()

    citation = ApproxNDCGLoss.citation
