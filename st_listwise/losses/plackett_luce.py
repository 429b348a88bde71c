"""Losses on the Plackett-Luce model: ListMLELoss, PListMLELoss, ListNetLoss, AttentionRankLoss."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from sentence_transformers.cross_encoder import CrossEncoder
from sentence_transformers.cross_encoder.losses import PListMLELambdaWeight
from torch import Tensor, nn
from typing_extensions import Unpack

from st_listwise import functional
from st_listwise.functional.lists import check_choice
from st_listwise.functional.plackett_luce import Ties
from st_listwise.losses.base import ListwiseLoss, ScoringOptions, dotted_name

logger = logging.getLogger(__name__)


class _RankingLoss(ListwiseLoss):
    """What the two likelihoods of a ranking share: which ranking it is that they look at."""

    def __init__(
        self,
        model: CrossEncoder,
        activation_fn: nn.Module | str | None,
        mini_batch_size: int | None,
        respect_input_order: bool,
        ties: Ties,
        **scoring: Unpack[ScoringOptions],
    ) -> None:
        super().__init__(model, activation_fn, mini_batch_size, **scoring)
        self.respect_input_order = respect_input_order
        self.ties = ties
        self._warned_ascending = False

    def ranking(self, labels: Tensor, mask: Tensor) -> Tensor:
        """The labels to rank by: those given, or falling ones where the input order is the ranking."""
        if not self.respect_input_order:
            return labels
        if self.training and not self._warned_ascending and _ascending(labels, mask):
            self._warned_ascending = True
            logger.warning(
                "respect_input_order=True, but the documents of this batch stand in the order of rising labels, worst "
                "first. If the labels are ranks (1 = best), the order is right; otherwise sort the documents best "
                "first, or leave respect_input_order off."
            )
        return -torch.arange(labels.shape[-1], device=labels.device).expand_as(labels)

    def get_config_dict(self) -> dict[str, Any]:
        return {"respect_input_order": self.respect_input_order, "ties": self.ties} | super().get_config_dict()


class ListMLELoss(_RankingLoss):
    r"""ListMLE: the likelihood of the labels' ranking under the Plackett-Luce model.

    .. math:: \ell(s, y) = \sum_{i=1}^{n} \Big[\log \sum_{j \in C_i} \exp s_{j} - s_{\pi(i)}\Big]

    with :math:`\pi(i)` the document of the i-th best label, and :math:`C_i` the documents that are left to choose from
    at that place, itself among them.

    Args:
        model: CrossEncoder with one output label.
        activation_fn: Applied to the scores before the loss. Default: none.
        mini_batch_size: See :class:`~st_listwise.losses.ListwiseLoss`; likewise ``mini_batch_tokens``,
            ``recompute``, ``share_prefix``.
        respect_input_order: Learn the order in which documents are given, whatever their labels. Default: False, the
            labels decide.
        ties: Documents of one label: "breslow" leaves their order open, "random" draws one at each step, "input" takes
            the given one. See :func:`st_listwise.functional.list_mle`.
        top_k: Count the first ``top_k`` choices only. Default: all.

    References:
        - Listwise Approach to Learning to Rank: Theory and Algorithm: https://doi.org/10.1145/1390156.1390306

    Requirements:
        1. A query with several documents
        2. One label a document, binary, graded or continuous; larger is better

    Inputs:
        +--------------------------------+-------------------------------+-------------------------------+
        | Inputs                         | Labels                        | Number of Model Output Labels |
        +================================+===============================+===============================+
        | (query, [doc1, ..., docN])     | [label1, ..., labelN]         | 1                             |
        +--------------------------------+-------------------------------+-------------------------------+

    Recommendations:
        - A good first choice. With one positive a query it is exactly softmax cross-entropy.
        - Distilling a teacher's ranking: give its scores as labels, and ``top_k`` if only its head can be trusted.

    Relations:
        - sentence-transformers' class of this name ranks documents in input order by default, here the labels decide;
          with ``respect_input_order=True`` the values are equal.
        - :class:`PListMLELoss` weighs the first choices more.

    Example:
        ::

            import torch
            from datasets import Dataset
            from sentence_transformers import CrossEncoder, CrossEncoderTrainer
            from st_listwise import ListMLELoss

            model = CrossEncoder(
                "microsoft/MiniLM-L12-H384-uncased", num_labels=1, activation_fn=torch.nn.Identity()
            )
            train_dataset = Dataset.from_dict({
                "query": ["What are pandas?", "What is the capital of France?"],
                "docs": [
                    ["Pandas are a kind of bear.", "Pandas are kind of like fish."],
                    ["The capital of France is Paris.", "Paris is the capital of France.", "Paris is quite large."],
                ],
                "labels": [[1, 0], [1, 1, 0]],
            })
            trainer = CrossEncoderTrainer(model=model, train_dataset=train_dataset, loss=ListMLELoss(model))
            trainer.train()
    """

    def __init__(
        self,
        model: CrossEncoder,
        activation_fn: nn.Module | str | None = None,
        mini_batch_size: int | None = None,
        respect_input_order: bool = False,
        *,
        ties: Ties = "breslow",
        top_k: int | None = None,
        **scoring: Unpack[ScoringOptions],
    ) -> None:
        super().__init__(model, activation_fn, mini_batch_size, respect_input_order, ties, **scoring)
        self.top_k = top_k
        self.check_options()

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        labels = self.ranking(labels, mask)
        return functional.list_mle(scores, labels, mask, ties=self.ties, top_k=self.top_k, reduction="none")

    def get_config_dict(self) -> dict[str, Any]:
        return {"top_k": self.top_k} | super().get_config_dict()

    @property
    def citation(self) -> str:
        return """
@inproceedings{xia2008listwise,
    title={Listwise Approach to Learning to Rank: Theory and Algorithm},
    author={Xia, Fen and Liu, Tie-Yan and Wang, Jue and Zhang, Wensheng and Li, Hang},
    booktitle={Proceedings of the 25th International Conference on Machine Learning},
    pages={1192--1199},
    year={2008},
    doi={10.1145/1390156.1390306},
}
"""


class PListMLELoss(_RankingLoss):
    r"""p-ListMLE: ListMLE whose first choices weigh more.

    .. math:: \ell(s, y) = \sum_{i=1}^{n} w_i \Big[\log \sum_{j \in C_i} \exp s_{j} - s_{\pi(i)}\Big],
              \qquad w_i \propto 2^{n-i} - 1, \quad \sum_i w_i = 1

    with :math:`\pi(i)` the document of the i-th best label, and :math:`C_i` the documents that are left to choose from
    at that place, itself among them.

    Args:
        model: CrossEncoder with one output label.
        lambda_weight: Weights of the positions: "exponential", the paper's; sentence-transformers'
            ``PListMLELambdaWeight`` or any function from a ``(1, docs)`` bool mask to ``(1, docs)`` weights, called for
            each list length by itself; None: all alike, which is ListMLE.
        activation_fn: Applied to the scores before the loss. Default: none.
        mini_batch_size: See :class:`~st_listwise.losses.ListwiseLoss`; likewise ``mini_batch_tokens``,
            ``recompute``, ``share_prefix``.
        respect_input_order: Learn the order in which documents are given, whatever their labels. Default: False.
        ties: As in :class:`ListMLELoss`; under "breslow" tied documents share the mean of their weights.

    References:
        - Position-Aware ListMLE: A Sequential Learning Process for Ranking: https://auai.org/uai2014/proceedings/individuals/164.pdf

    Requirements:
        1. A query with several documents
        2. One label a document, binary, graded or continuous; larger is better

    Inputs:
        +--------------------------------+-------------------------------+-------------------------------+
        | Inputs                         | Labels                        | Number of Model Output Labels |
        +================================+===============================+===============================+
        | (query, [doc1, ..., docN])     | [label1, ..., labelN]         | 1                             |
        +--------------------------------+-------------------------------+-------------------------------+

    Recommendations:
        - The paper's weights halve with each position: below the tenth document nothing is learnt. Give weights of your
          own for long lists whose tail matters.

    Relations:
        - sentence-transformers' class of this name ranks documents in input order by default, here the labels decide;
          with ``respect_input_order=True`` the values are equal.

    Example:
        ::

            loss = PListMLELoss(model)
            # or with weights of one's own: 1 / log2(1 + rank)
            loss = PListMLELoss(model, lambda_weight=lambda mask: 1 / torch.log2(1 + mask.cumsum(-1)))
    """

    def __init__(
        self,
        model: CrossEncoder,
        lambda_weight: PListMLELambdaWeight | Callable[[Tensor], Tensor] | str | None = "exponential",
        activation_fn: nn.Module | str | None = None,
        mini_batch_size: int | None = None,
        respect_input_order: bool = False,
        *,
        ties: Ties = "breslow",
        **scoring: Unpack[ScoringOptions],
    ) -> None:
        if isinstance(lambda_weight, type) or not (lambda_weight is None or callable(lambda_weight)):
            check_choice("lambda_weight", lambda_weight, ("exponential",))
        if type(lambda_weight) is PListMLELambdaWeight and lambda_weight.rank_discount_fn is None:
            lambda_weight = "exponential"
        super().__init__(model, activation_fn, mini_batch_size, respect_input_order, ties, **scoring)
        self.lambda_weight = lambda_weight
        self.check_options()

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        labels = self.ranking(labels, mask)
        if self.lambda_weight is None:
            return functional.list_mle(scores, labels, mask, ties=self.ties, reduction="none")
        weights = None if isinstance(self.lambda_weight, str) else position_weights(self.lambda_weight, mask)
        return functional.p_list_mle(scores, labels, mask, weights=weights, ties=self.ties, reduction="none")

    def get_config_dict(self) -> dict[str, Any]:
        named = self.lambda_weight is None or isinstance(self.lambda_weight, str)
        weight = self.lambda_weight if named else _weight_name(self.lambda_weight)
        return {"lambda_weight": weight} | super().get_config_dict()

    @property
    def citation(self) -> str:
        return """
@inproceedings{lan2014position,
    title={Position-Aware ListMLE: A Sequential Learning Process for Ranking},
    author={Lan, Yanyan and Zhu, Yadong and Guo, Jiafeng and Niu, Shuzi and Cheng, Xueqi},
    booktitle={Proceedings of the Thirtieth Conference on Uncertainty in Artificial Intelligence},
    pages={449--458},
    year={2014},
}
"""


class ListNetLoss(ListwiseLoss):
    r"""ListNet: cross-entropy between the top-one distributions of labels and scores.

    .. math:: \ell(s, y) = -\sum_i \operatorname{softmax}(y / t)_i \log \operatorname{softmax}(s)_i

    Args:
        model: CrossEncoder with one output label.
        activation_fn: Applied to the scores before the loss. Default: none.
        mini_batch_size: See :class:`~st_listwise.losses.ListwiseLoss`; likewise ``mini_batch_tokens``,
            ``recompute``, ``share_prefix``.
        label_temperature: t above 0; smaller sharpens the target towards the best documents.

    References:
        - Learning to Rank: From Pairwise Approach to Listwise Approach: https://doi.org/10.1145/1273496.1273513

    Requirements:
        1. A query with several documents
        2. One label a document, best on the scale of logits (a teacher's scores); larger is better

    Inputs:
        +--------------------------------+-------------------------------+-------------------------------+
        | Inputs                         | Labels                        | Number of Model Output Labels |
        +================================+===============================+===============================+
        | (query, [doc1, ..., docN])     | [label1, ..., labelN]         | 1                             |
        +--------------------------------+-------------------------------+-------------------------------+

    Recommendations:
        - With binary labels the target is nearly flat: the positive of ten documents gets 23%, and once its score
          stands higher than that it is pushed *down*. Set ``label_temperature`` to 0.1 or so, or use
          :class:`ListMLELoss` or :class:`AttentionRankLoss`.

    Relations:
        - The values are those of sentence-transformers' class of this name, except that a list of equal labels is 0.

    Example:
        ::

            loss = ListNetLoss(model, label_temperature=0.1)
    """

    def __init__(
        self,
        model: CrossEncoder,
        activation_fn: nn.Module | str | None = None,
        mini_batch_size: int | None = None,
        *,
        label_temperature: float = 1.0,
        **scoring: Unpack[ScoringOptions],
    ) -> None:
        super().__init__(model, activation_fn, mini_batch_size, **scoring)
        self.label_temperature = label_temperature
        self.check_options()

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return functional.list_net(scores, labels, mask, label_temperature=self.label_temperature, reduction="none")

    def get_config_dict(self) -> dict[str, Any]:
        return {"label_temperature": self.label_temperature} | super().get_config_dict()

    @property
    def citation(self) -> str:
        return """
@inproceedings{cao2007learning,
    title={Learning to Rank: From Pairwise Approach to Listwise Approach},
    author={Cao, Zhe and Qin, Tao and Liu, Tie-Yan and Tsai, Ming-Feng and Li, Hang},
    booktitle={Proceedings of the 24th International Conference on Machine Learning},
    pages={129--136},
    year={2007},
    doi={10.1145/1273496.1273513},
}
"""


class AttentionRankLoss(ListwiseLoss):
    r"""Attention rank loss: cross-entropy with the attention that relevant documents deserve, as SetRank is trained.

    .. math:: \ell(s, y) = -\sum_i a_i \log \operatorname{softmax}(s)_i, \qquad a_i = \phi(y_i) / \sum_j \phi(y_j)

    with :math:`\phi(y) = e^y` for y > 0, else 0.

    Args:
        model: CrossEncoder with one output label.
        activation_fn: Applied to the scores before the loss. Default: none.
        mini_batch_size: See :class:`~st_listwise.losses.ListwiseLoss`; likewise ``mini_batch_tokens``,
            ``recompute``, ``share_prefix``.

    References:
        - SetRank: Learning a Permutation-Invariant Ranking Model: https://arxiv.org/abs/1912.05891
        - Learning a Deep Listwise Context Model for Ranking Refinement: https://arxiv.org/abs/1804.05936

    Requirements:
        1. A query with several documents
        2. One label a document, 0 for not relevant, above 0 for relevant

    Inputs:
        +--------------------------------+-------------------------------+-------------------------------+
        | Inputs                         | Labels                        | Number of Model Output Labels |
        +================================+===============================+===============================+
        | (query, [doc1, ..., docN])     | [label1, ..., labelN]         | 1                             |
        +--------------------------------+-------------------------------+-------------------------------+

    Recommendations:
        - Binary and graded labels. For teacher scores of any sign use :class:`ListNetLoss` or :class:`ListMLELoss`.

    Relations:
        - :class:`ListNetLoss` gives documents of label 0 a part of the target, this loss does not. With one positive
          both this and :class:`ListMLELoss` are softmax cross-entropy.

    Example:
        ::

            loss = AttentionRankLoss(model)
    """

    def __init__(
        self,
        model: CrossEncoder,
        activation_fn: nn.Module | str | None = None,
        mini_batch_size: int | None = None,
        **scoring: Unpack[ScoringOptions],
    ) -> None:
        super().__init__(model, activation_fn, mini_batch_size, **scoring)

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return functional.attention_rank(scores, labels, mask, reduction="none")

    @property
    def citation(self) -> str:
        return """
@inproceedings{pang2020setrank,
    title={SetRank: Learning a Permutation-Invariant Ranking Model for Information Retrieval},
    author={Pang, Liang and Xu, Jun and Ai, Qingyao and Lan, Yanyan and Cheng, Xueqi and Wen, Jirong},
    booktitle={Proceedings of the 43rd International ACM SIGIR Conference on Research and Development in Information Retrieval},
    pages={499--508},
    year={2020},
    doi={10.1145/3397271.3401104},
}
"""


def position_weights(function: Callable[[Tensor], Tensor], mask: Tensor) -> Tensor:
    """``(lists, docs)`` weights of a user's function, called for each list length by itself: it sees no neighbours."""
    sizes = mask.sum(-1)
    weights = torch.zeros(mask.shape, device=mask.device)
    for size in set(sizes.tolist()) - {0}:
        row = function(torch.ones(1, size, dtype=torch.bool, device=mask.device))
        if not isinstance(row, Tensor) or row.shape[-1:] != (size,) or row.numel() != size:
            raise ValueError(f"lambda_weight must return (1, {size}) weights for a mask of that shape, got {row!r}.")
        weights[sizes == size, :size] = row.reshape(-1).to(weights)
    return weights


def _weight_name(function: Any) -> str:
    return dotted_name(function.rank_discount_fn if isinstance(function, PListMLELambdaWeight) else function)


def _ascending(labels: Tensor, mask: Tensor) -> bool:
    """Every list rises from its first document to its last, and one does so strictly somewhere."""
    steps = labels.diff(dim=-1).masked_fill(~mask[:, 1:], 0)
    return bool((steps >= 0).all() and (steps > 0).any())
