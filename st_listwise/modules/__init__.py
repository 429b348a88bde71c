"""Set attention as sentence-transformers modules: the blocks, SetRank, and numeric documents as input."""

from __future__ import annotations

from st_listwise.modules.feature_vectors import FeatureVectors
from st_listwise.modules.ordinal import OrdinalEmbedding
from st_listwise.modules.set_attention import IMSAB, MSAB
from st_listwise.modules.set_rank import SetRank, SetRankConfig

__all__ = ["IMSAB", "MSAB", "FeatureVectors", "OrdinalEmbedding", "SetRank", "SetRankConfig"]
