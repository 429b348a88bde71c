"""Train rerankers on whole ranked lists: listwise losses for sentence-transformers' ``CrossEncoderTrainer``.

Pass a loss of this package to the trainer; everything else stays as it is::

    import torch
    from sentence_transformers import CrossEncoder, CrossEncoderTrainer
    from st_listwise import ListMLELoss

    model = CrossEncoder("microsoft/MiniLM-L12-H384-uncased", num_labels=1, activation_fn=torch.nn.Identity())
    CrossEncoderTrainer(model=model, train_dataset=train_dataset, loss=ListMLELoss(model)).train()

``train_dataset`` has the columns query, docs and labels. The mathematics alone is in :mod:`st_listwise.functional`.
"""

from __future__ import annotations

from importlib.metadata import version

from st_listwise import functional, losses, modules
from st_listwise.callback import ListStatisticsCallback
from st_listwise.data_collator import ListwiseDataCollator
from st_listwise.losses import (
    ADRMSELoss,
    ApproxMRRLoss,
    ApproxNDCGLoss,
    AttentionRankLoss,
    CombinedLoss,
    LambdaLoss,
    ListMLELoss,
    ListNetLoss,
    ListwiseLoss,
    PListMLELoss,
    RankNetLoss,
)
from st_listwise.modules import FeatureVectors, SetRankConfig
from st_listwise.set_rank_cross_encoder import SetRankCrossEncoder

__version__ = version("st-listwise")

__all__ = [
    "ADRMSELoss",
    "ApproxMRRLoss",
    "ApproxNDCGLoss",
    "AttentionRankLoss",
    "CombinedLoss",
    "FeatureVectors",
    "LambdaLoss",
    "ListMLELoss",
    "ListNetLoss",
    "ListStatisticsCallback",
    "ListwiseDataCollator",
    "ListwiseLoss",
    "PListMLELoss",
    "RankNetLoss",
    "SetRankConfig",
    "SetRankCrossEncoder",
    "functional",
    "losses",
    "modules",
]
