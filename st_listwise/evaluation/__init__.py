"""Graded evaluation of rerankers on ir-measures, and paired comparison over queries."""

from __future__ import annotations

from st_listwise.evaluation.comparison import Comparison, compare
from st_listwise.evaluation.graded import GradedRerankingEvaluator
from st_listwise.evaluation.scores import predict_lists

__all__ = ["Comparison", "GradedRerankingEvaluator", "compare", "predict_lists"]
