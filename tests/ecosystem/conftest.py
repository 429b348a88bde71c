"""A trained model as the tools of others meet it: a folder, and what it should say."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from datasets import Dataset
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from tiny_models import tiny_bert

from st_listwise import ListMLELoss

QUERY = "capital of france"
DOCS = ["rome is far away", "paris", "a planet", "berlin is big and far away", "the capital is paris", "as light"]


class Trained(NamedTuple):
    folder: str
    query: str
    docs: list[str]
    scores: dict[str, float]  #: of each document, by a stock CrossEncoder
    ranking: list[str]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    rows = Dataset.from_dict({"query": [QUERY], "docs": [DOCS], "labels": [[1, 4, 0, 2, 5, 3]]})
    model = tiny_bert()
    args = CrossEncoderTrainingArguments(
        output_dir=str(folder),
        max_steps=20,
        learning_rate=5e-3,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    CrossEncoderTrainer(model=model, args=args, train_dataset=rows, loss=ListMLELoss(model)).train()
    model.save_pretrained(str(folder / "final"))
    stock = CrossEncoder(str(folder / "final"), device="cpu")
    scores = dict(zip(DOCS, stock.predict([(QUERY, doc) for doc in DOCS]).tolist()))
    ranking = sorted(DOCS, key=lambda doc: -scores[doc])
    assert ranking == ["the capital is paris", "paris", "as light", "berlin is big and far away", DOCS[0], "a planet"]
    return Trained(str(folder / "final"), QUERY, DOCS, scores, ranking)
