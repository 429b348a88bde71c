"""Train a text reranker that looks at all documents of a query at once (SetRank).

    python examples/setrank/train_text.py --dataset demo --model demo             # minutes on a laptop, no download
    python examples/setrank/train_text.py --dataset rows.jsonl --ordinal relative # the given order is a first ranking

It is examples/ms_marco/train_listwise.py with set layers on top of the encoder: data, arguments, figures and push are
the same, and documents keep the order in which they are given.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from sentence_transformers import CrossEncoder

from st_listwise import SetRankConfig, SetRankCrossEncoder

sys.path.append(str(Path(__file__).resolve().parents[1] / "ms_marco"))

from sources import load_model
from train_listwise import ScriptArguments, main


@dataclass
class SetRankArguments(ScriptArguments):
    """What is trained on what, and the shape of the set layers."""

    path: ClassVar[str] = "examples/setrank/train_text.py"
    defaults: ClassVar[dict[str, Any]] = {"output_dir": "output/setrank_text"}
    keep_order: ClassVar[bool] = True

    layers: int = field(default=SetRankConfig.layers, metadata={"help": "blocks of set attention"})
    heads: int = field(default=SetRankConfig.heads, metadata={"help": "attention heads, a divisor of the width"})
    width: int | None = field(default=None, metadata={"help": "width of the set layers; default: the encoder's"})
    inducing_points: int = field(default=0, metadata={"help": "0: MSAB; M: IMSAB with M learned vectors"})
    set_dropout: float = field(default=SetRankConfig.dropout, metadata={"help": "in the set layers"})
    ordinal: str = field(default="none", metadata={"help": "the given order as a ranking: none, absolute or relative"})
    longest_list: int = field(default=1000, metadata={"help": "rows of the table of ordinal embeddings"})
    pooling: str | None = field(default=None, metadata={"help": "token vectors to a pair's: cls, mean (default), ..."})
    head_learning_rate: float = field(
        default=5e-4,
        metadata={"help": "peak learning rate of the set layers and the scores, which start from nothing"},
    )
    freeze_encoder: bool = field(default=False, metadata={"help": "train the set layers and the scores alone"})

    def build_model(self) -> CrossEncoder:
        config = SetRankConfig(
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            inducing_points=self.inducing_points,
            dropout=self.set_dropout,
            ordinal=self.ordinal,  # type: ignore[arg-type]
            max_docs=self.longest_list,
        )
        build = partial(
            SetRankCrossEncoder,
            set_rank=None if config == SetRankConfig() else config,  # a saved set model has a shape of its own
            pooling=self.pooling,
        )
        model = load_model(self.model, self.max_length, build)
        if self.freeze_encoder:
            model[0].requires_grad_(False)
        return model

    def learning_rates(self) -> dict[str, float]:
        return {r"\b[23]\.(projection|ordinal|blocks|linear)\b": self.head_learning_rate}


if __name__ == "__main__":
    sys.exit(main(script_class=SetRankArguments, description=__doc__))
