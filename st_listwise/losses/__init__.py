"""Listwise losses for ``CrossEncoderTrainer``, one family a file."""

from __future__ import annotations

from st_listwise.losses.approx_rank import ADRMSELoss, ApproxMRRLoss, ApproxNDCGLoss
from st_listwise.losses.base import ListwiseLoss
from st_listwise.losses.combined import CombinedLoss
from st_listwise.losses.pairwise import LambdaLoss, RankNetLoss
from st_listwise.losses.plackett_luce import AttentionRankLoss, ListMLELoss, ListNetLoss, PListMLELoss

__all__ = [
    "ADRMSELoss",
    "ApproxMRRLoss",
    "ApproxNDCGLoss",
    "AttentionRankLoss",
    "CombinedLoss",
    "LambdaLoss",
    "ListMLELoss",
    "ListNetLoss",
    "ListwiseLoss",
    "PListMLELoss",
    "RankNetLoss",
]
