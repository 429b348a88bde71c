"""Pure functions on padded lists: ``f(scores, labels, mask) → loss``. No model, no text, no sentence-transformers."""

from __future__ import annotations

from st_listwise.functional.approx_rank import adr_mse, approx_mrr, approx_ndcg, approx_ranks
from st_listwise.functional.lists import label_ranks, length_mask, pad_lists, unpad_lists
from st_listwise.functional.pairwise import lambda_loss, rank_net
from st_listwise.functional.plackett_luce import attention_rank, list_mle, list_net, p_list_mle, p_list_mle_weights

__all__ = [
    "adr_mse",
    "approx_mrr",
    "approx_ndcg",
    "approx_ranks",
    "attention_rank",
    "label_ranks",
    "lambda_loss",
    "length_mask",
    "list_mle",
    "list_net",
    "p_list_mle",
    "p_list_mle_weights",
    "pad_lists",
    "rank_net",
    "unpad_lists",
]
