"""Train a reranker on a TREC collection and rerank with it: run, qrels, corpus and queries in, a reranked run out.

    python examples/trec/train_trec.py --run bm25.run --qrels qrels.tsv --corpus docs.jsonl --queries queries.jsonl
    python examples/trec/train_trec.py --run train.run --qrels train.qrels --corpus docs.jsonl.gz \\
        --queries train.tsv --test_run test.run --test_qrels test.qrels --test_queries test.tsv

Without a test run, one part of the queries is the test. Every argument of CrossEncoderTrainingArguments can be given
as well. See the README beside this file.
"""

from __future__ import annotations

import logging
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from sentence_transformers import CrossEncoder
from transformers import TrainerCallback

from st_listwise.data import EpochSampler, read_trec, write_run
from st_listwise.evaluation import GradedRerankingEvaluator, predict_lists

sys.path.append(str(Path(__file__).resolve().parents[1] / "ms_marco"))

from reporting import COLUMNS, PerQuery
from train_listwise import Data, RunArguments, hold_out, main, rounded

logger = logging.getLogger("train_listwise.trec")


@dataclass(kw_only=True)
class TrecArguments(RunArguments):
    """What is trained on what."""

    path: ClassVar[str] = "examples/trec/train_trec.py"
    defaults: ClassVar[dict[str, Any]] = {"output_dir": "output/trec", "per_device_train_batch_size": 8}
    files: ClassVar[str] = f"reranked.run, {RunArguments.files}"
    first_order: ClassVar[str] = "first stage"  #: what the order of the run is called
    keep_above: ClassVar[float] = 0.0  #: label above which a document stays in each sample

    run: str = field(metadata={"help": "lines qid Q0 docid rank score tag; gzip is read, here and below"})
    qrels: str = field(metadata={"help": "lines qid 0 docid grade, or three columns with a header"})
    corpus: str = field(metadata={"help": 'JSON lines with "_id", "title", "text", or lines id<TAB>text'})
    queries: str = field(metadata={"help": "as the corpus"})
    test_run: str | None = field(default=None, metadata={"help": "run to rerank; default: a part of --run's queries"})
    test_qrels: str | None = field(default=None, metadata={"help": "default: --qrels"})
    test_corpus: str | None = field(default=None, metadata={"help": "default: --corpus"})
    test_queries: str | None = field(default=None, metadata={"help": "default: --queries"})
    folds: int = field(
        default=5, metadata={"help": "without --test_run: parts of the queries, of which one is the test"}
    )
    fold: int = field(default=0, metadata={"help": "which one, from 0"})
    depth: int = field(default=100, metadata={"help": "documents of a query that are read and reranked"})
    measures: list[str] = field(
        default_factory=lambda: list(COLUMNS),
        metadata={"help": "as ir-measures writes them; the first chooses the best checkpoint"},
    )

    def source(self) -> str:
        return self.run

    def limits(self) -> list[str]:
        return [f"Only the first {self.depth} documents of each query were reranked; grades as in the judgments."]

    def prepare_data(self, output: Path) -> Data:
        taught, judged = self.read_training(output)
        test = self.read_test(output) or self.choose_fold(judged)
        reserved = set(zip(test["query_id"], test["query"]))
        free = taught.filter(lambda *query: query not in reserved, input_columns=["query_id", "query"])
        useful = free.filter(lambda labels: min(labels) < max(labels), input_columns="labels")
        train, held_out = hold_out(self, useful)
        names = set(held_out["query_id"])
        evaluation = {"held-out": judged.filter(names.__contains__, input_columns="query_id"), "test": test}
        counts = {
            "train": counted(free, useful),
            "held-out": {"queries": len(held_out)},
            "test": counted(test, test),
        }
        logger.info(
            f"{len(train)} lists to train on, {len(held_out)} to choose the best checkpoint, {len(test)} to test."
        )
        return train.select_columns(["query", "docs", "labels"]), evaluation, counts

    def read_training(self, output: Path) -> tuple[Dataset, Dataset]:
        """Lists to learn from, and the same queries with judgments."""
        lists = self.judged(self.run, self.qrels, self.corpus, self.queries)
        return lists, lists

    def read_test(self, output: Path) -> Dataset | None:
        """The lists of the test run, if there is one."""
        if not self.test_run:
            if alone := [name for name in ("qrels", "corpus", "queries") if getattr(self, f"test_{name}")]:
                raise ValueError(f"--test_{alone[0]} is for a --test_run; without one --folds makes the test.")
            return None
        return self.judged(self.test_run, *self.test_files())

    def test_files(self) -> tuple[str, str, str]:
        """Qrels, corpus and queries of the test, where they are not those of the training."""
        return (
            self.test_qrels or self.qrels,
            self.test_corpus or self.corpus,
            self.test_queries or self.queries,
        )

    def judged(self, run: str, qrels: str, corpus: Any, queries: Any) -> Dataset:
        """All lists of a run with judgments as labels."""
        return read_trec(run, qrels, corpus, queries, depth=self.depth, keep_all=True)

    def choose_fold(self, lists: Dataset) -> Dataset:
        """Every folds-th query of an order drawn by chance, the same one in each run."""
        if not 0 <= self.fold < self.folds <= len(lists):
            raise ValueError(
                f"--fold {self.fold} --folds {self.folds}: needs 0 <= fold < folds <= {len(lists)}, the queries of "
                f"{self.run}."
            )
        order = random.Random(12).sample(sorted(lists["query_id"]), len(lists))
        return lists.filter(set(order[self.fold :: self.folds]).__contains__, input_columns="query_id")

    def sample(self, train: Dataset) -> tuple[Dataset, list[TrainerCallback]]:
        if self.max_docs is None:
            return train, []
        sampler = EpochSampler(self.max_docs, keep_above=self.keep_above)
        return sampler.attach(train), [sampler]

    def build_evaluator(self, lists: Dataset, name: str) -> GradedRerankingEvaluator:
        return GradedRerankingEvaluator(lists, self.measures, name=name, show_progress_bar=True, write_csv=False)

    def measure_first(self, evaluator: GradedRerankingEvaluator) -> dict[str, PerQuery]:
        """Lists come in the order of the run."""
        orders = [-np.arange(len(row["docs"]), dtype=np.float64) for row in evaluator.rows]
        return {self.first_order: rounded(evaluator.measure(orders))}

    def measure_last(
        self, model: CrossEncoder, evaluator: GradedRerankingEvaluator, lists: Dataset, output: Path
    ) -> PerQuery:
        """Figures of the test queries are those of the run that is written, in which no query is left out."""
        if evaluator.name != "test":
            return super().measure_last(model, evaluator, lists, output)
        scores = predict_lists(model, lists["query"], lists["docs"], show_progress_bar=True)
        write_run(output / "reranked.run", lists, [own.tolist() for own in scores])
        judged = [max([*labels, *missed]) > 0 for labels, missed in zip(lists["labels"], lists["missed"])]
        return rounded(evaluator.measure([own.astype(np.float64) for own, kept in zip(scores, judged) if kept]))


def counted(lists: Dataset, useful: Dataset) -> dict[str, int]:
    """Counts as the card puts them into words."""
    counts = {"queries": len(lists), "kept": len(useful), "documents": sum(map(len, useful["docs"]))}
    return counts | ({"one label": len(lists) - len(useful)} if len(useful) < len(lists) else {})


if __name__ == "__main__":
    sys.exit(main(script_class=TrecArguments, description=__doc__))
