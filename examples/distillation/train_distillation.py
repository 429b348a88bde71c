"""Train a small reranker on a teacher's rankings: a TREC run, a table of scores, or a model that ranks here.

    python examples/distillation/train_distillation.py --run teacher.run --corpus docs.jsonl --queries train.tsv \\
        --test_run teacher.test.run --test_qrels test.qrels --test_queries test.tsv
    python examples/distillation/train_distillation.py --run scores.dev.tsv --rows dev.jsonl \\
        --test_run scores.test.tsv --test_rows test.jsonl
    python examples/distillation/train_distillation.py --teacher_model output/ms_marco/final --rows dev.jsonl \\
        --test_rows test.jsonl

It is examples/trec/train_trec.py with a teacher's ranks as labels: no judgments are needed to train. Every argument of
CrossEncoderTrainingArguments can be given as well. See the README beside this file.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from datasets import Dataset

from st_listwise.data import read_teacher_run

sys.path.extend(str(Path(__file__).resolve().parents[1] / name) for name in ("ms_marco", "trec"))

from teacher import candidates_text, is_table, qrels_text, rank_by_model, read_rows, read_table, run_text, save
from train_listwise import Data, main
from train_trec import TrecArguments


class Parts(NamedTuple):
    """What readers take."""

    run: str
    corpus: Any
    queries: Any
    qrels: str | None


@dataclass(kw_only=True)
class DistillationArguments(TrecArguments):
    """What is trained on what."""

    path: ClassVar[str] = "examples/distillation/train_distillation.py"
    defaults: ClassVar[dict[str, Any]] = {"output_dir": "output/distillation", "per_device_train_batch_size": 8}
    first_order: ClassVar[str] = "teacher"
    keep_above: ClassVar[float] = math.inf  # no document is a negative

    loss: str = field(
        default="RankNetLoss", metadata={"help": "class name: RankNetLoss, ADRMSELoss, ListNetLoss, ..."}
    )
    run: str | None = field(  # type: ignore[assignment]
        default=None,
        metadata={"help": "teacher's run, or table query<TAB>document<TAB>score with a header; what is to be ranked"},
    )
    column: str | None = field(default=None, metadata={"help": "of such tables, with the scores; default: the third"})
    teacher_model: str | None = field(
        default=None, metadata={"help": "pointwise or set model that ranks the documents of --run or --rows first"}
    )
    labels: str = field(default="ranks", metadata={"help": "what is learned: ranks or scores of the teacher"})
    rows: str | None = field(
        default=None,
        metadata={"help": "JSON lines with query_id, query, passage_ids, passages: corpus, queries and qrels in one"},
    )
    qrels: str | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "judgments that choose the best checkpoint; default: the teacher's best third"}
    )
    corpus: str | None = field(default=None, metadata={"help": "as in examples/trec"})  # type: ignore[assignment]
    queries: str | None = field(default=None, metadata={"help": "as the corpus"})  # type: ignore[assignment]
    test_rows: str | None = field(default=None, metadata={"help": "as --rows"})

    def source(self) -> str:
        return str(self.run or self.rows)

    def limits(self) -> list[str]:
        limits = super().limits()
        if not (self.qrels or self.rows):
            limits.append("Held-out figures are agreement with the teacher: its best third is what is relevant.")
        return limits

    def prepare_data(self, output: Path) -> Data:
        for rows in ("rows", "test_rows"):
            prefix = rows.removesuffix("rows")
            twice = [f"--{prefix}{name}" for name in ("qrels", "corpus", "queries") if getattr(self, prefix + name)]
            if getattr(self, rows) and twice:
                raise ValueError(f"--{rows} brings qrels, corpus and queries: leave out {', '.join(twice)}.")
        return super().prepare_data(output)

    def read_training(self, output: Path) -> tuple[Dataset, Dataset]:
        parts = self._parts(output, "train", self.run, self.qrels, self.corpus, self.queries, self.rows)
        taught = read_teacher_run(*parts[:3], labels=self.labels, depth=self.depth)  # type: ignore[arg-type]
        if parts.qrels:
            return taught, self.judged(parts.run, parts.qrels, parts.corpus, parts.queries)
        if not (self.test_run or self.test_rows):
            raise ValueError("There are no judgments to measure with: give --test_run and --test_qrels, or --qrels.")
        return taught, taught.map(by_teacher, desc="Taking the teacher's best third as relevant")

    def read_test(self, output: Path) -> Dataset | None:
        if not (self.test_run or self.test_rows):
            return super().read_test(output)
        parts = self._parts(output, "test", self.test_run, *self.test_files(), self.test_rows)
        if not parts.qrels:
            raise ValueError(f"There are no judgments for {parts.run}: give --test_qrels.")
        return self.judged(parts.run, parts.qrels, parts.corpus, parts.queries)

    def _parts(
        self, output: Path, name: str, run: str | None, qrels: str | None, corpus: Any, queries: Any, rows: str | None
    ) -> Parts:
        """Runs and judgments as files, whatever they come as; what is made on the way lies beside the results."""
        if rows:
            own = read_rows(Path(rows))
            corpus, queries, qrels = own.corpus, own.queries, save(output / f"{name}.qrels", qrels_text(own.grades))
            if self.teacher_model and not run:
                run = save(output / f"{name}.candidates.run", candidates_text(own.grades))
        given = {"run": run, "corpus": corpus, "queries": queries}
        if missing := [key for key, part in given.items() if part is None]:
            prefix = "" if name == "train" else "test_"
            raise ValueError(f"There is no --{prefix}{missing[0]}, and no --{prefix}rows in its place.")
        if is_table(Path(str(run))):
            made = "candidates" if self.teacher_model else "teacher"
            run = save(output / f"{name}.{made}.run", run_text(read_table(Path(str(run)), self.column)))
        elif self.column:
            raise ValueError(f"--column {self.column!r} is for tables of scores; {run} is none: it has no header.")
        if self.teacher_model:
            # By score, as any first stage is read. What teaches nothing is ranked, too: tests need all queries.
            candidates = read_teacher_run(str(run), corpus, queries, labels="scores", depth=self.depth, keep_all=True)
            run = str(output / f"{name}.teacher.run")
            rank_by_model(self.teacher_model, candidates, Path(run))
        return Parts(str(run), corpus, queries, qrels)


def by_teacher(row: dict[str, Any]) -> dict[str, Any]:
    """Grades where there are no judgments: the teacher's best third, at most 10, the best one highest.

    >>> by_teacher({"labels": [6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]})
    {'labels': [2, 1, 0, 0, 0, 0, 0], 'missed': []}
    """
    best = min(10, max(1, len(row["labels"]) // 3))
    return {"labels": [max(0, best - place) for place in range(len(row["labels"]))], "missed": []}


if __name__ == "__main__":
    sys.exit(main(script_class=DistillationArguments, description=__doc__))
