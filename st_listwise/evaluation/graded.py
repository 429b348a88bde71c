"""GradedRerankingEvaluator: any measure of ir-measures on reranked lists; missed documents count, ties are fair."""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import CrossEncoder
from sentence_transformers.base.evaluation import BaseEvaluator

from st_listwise.evaluation.scores import predict_lists

logger = logging.getLogger(__name__)


class GradedRerankingEvaluator(BaseEvaluator):
    """Reranks lists of judged documents and measures the result.

    Besides what a trainer logs, :attr:`per_query` holds the values of each query after a call, for paired tests.

    Args:
        lists: Rows with ``query``, ``docs`` and ``labels``, whole numbers from 0 on, 0 for not relevant. Optional
            ``missed``: labels of relevant documents that are not among ``docs``, which no reranker can put right; they
            count in ideal orders and in recall.
        measures: As ir-measures writes them, such as "nDCG@10", "AP(rel=2)" or "RR@10". The first is the one to choose
            models by.
        name: Goes before the keys: ``metric_for_best_model`` is ``"eval_{name}_{measure}"``, or ``"eval_{measure}"``
            without a name.
        batch_size: Pairs that are scored at once.
        show_progress_bar: Whether to show progress.
        write_csv: Write the values of each query into the output folder, a file for each call.

    Raises:
        ValueError: no lists, labels that are no whole numbers from 0 on or do not fit the documents, or a measure that
            is not known.
        ImportError: ir-measures is not installed.

    Documents of equal score are ordered by chance, the same one in each call, so that a model that scores all alike is
    worth what a random order is worth. Queries without any relevant document are left out, and counted in the log.
    """

    def __init__(
        self,
        lists: Iterable[Mapping[str, Any]],
        measures: str | Sequence[str] = "nDCG@10",
        name: str = "",
        batch_size: int = 32,
        show_progress_bar: bool = False,
        write_csv: bool = True,
    ) -> None:
        super().__init__()
        names = [measures] if isinstance(measures, str) else list(measures)
        self.measures = {measure: _parse(measure) for measure in names}
        self.name = name
        self.batch_size = batch_size
        self.show_progress_bar = show_progress_bar
        self.write_csv = write_csv
        rows = [_checked(row, index) for index, row in enumerate(lists)]
        self.rows = [row for row in rows if max([*row["labels"], *row["missed"]]) > 0]
        if not self.rows:
            raise ValueError(f"There is nothing to measure: of {len(rows)} lists none has a relevant document.")
        if len(self.rows) < len(rows):
            logger.info(f"{len(rows) - len(self.rows)} of {len(rows)} queries have no relevant document: left out.")
        self.primary_metric = self._key(names[0])
        self.per_query: dict[str, list[float]] = {}

    def __call__(  # type: ignore[override]
        self, model: CrossEncoder, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Measure a model.

        Args:
            model: A CrossEncoder with one output, or a SetRankCrossEncoder.
            output_path: Folder for the values of each query.
            epoch: Goes into the name of the file.
            steps: Goes into the name of the file.

        Returns:
            Measure → mean over queries.
        """
        scores = predict_lists(
            model,
            [row["query"] for row in self.rows],
            [row["docs"] for row in self.rows],
            batch_size=self.batch_size,
            show_progress_bar=self.show_progress_bar,
        )
        self.per_query = self.measure([own.astype(np.float64) for own in scores])
        metrics = {self._key(measure): float(np.mean(values)) for measure, values in self.per_query.items()}
        if output_path is not None and self.write_csv:
            self._write(Path(output_path), epoch, steps)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    def measure(self, scores: Sequence[np.ndarray]) -> dict[str, list[float]]:
        """Measure → value of each query, from the scores of each list.

        Raises:
            ValueError: a score is NaN or infinite.
        """
        import ir_measures

        generator = np.random.default_rng(12)
        qrels, run = [], []
        for number, (row, own) in enumerate(zip(self.rows, scores)):
            if not np.isfinite(own).all():
                place = int(np.flatnonzero(~np.isfinite(own))[0])
                raise ValueError(f"The score of query {number}, document {place} is {own[place]}.")
            order = np.lexsort((generator.permutation(len(own)), -own))
            judged = [*enumerate(row["labels"]), *enumerate(row["missed"], len(own))]
            qrels += [ir_measures.Qrel(str(number), str(doc), label) for doc, label in judged]
            # Ranks as scores: measures break ties each in a way of its own, so that none may be left to them.
            run += [ir_measures.ScoredDoc(str(number), str(doc), float(-rank)) for rank, doc in enumerate(order)]
        found: dict[Any, dict[str, float]] = {measure: {} for measure in self.measures.values()}
        for metric in ir_measures.iter_calc(list(found), qrels, run):
            found[metric.measure][metric.query_id] = metric.value
        numbers = [str(number) for number in range(len(self.rows))]
        return {name: [found[measure][number] for number in numbers] for name, measure in self.measures.items()}

    def get_config_dict(self) -> dict[str, Any]:
        """What the model card says of the evaluator."""
        return {"measures": list(self.measures)}

    def _key(self, measure: str) -> str:
        return f"{self.name}_{measure}" if self.name else measure

    def _write(self, folder: Path, epoch: int, steps: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"graded_reranking{'_' if self.name else ''}{self.name}_epoch{epoch}_step{steps}.csv"
        temporary = path.with_suffix(".tmp")
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["query", *self.per_query])
            writer.writerows(zip([row["query"] for row in self.rows], *self.per_query.values()))
        os.replace(temporary, path)


def _parse(measure: str) -> Any:
    try:
        import ir_measures
    except ImportError as error:
        raise ImportError('GradedRerankingEvaluator needs ir-measures: pip install "st-listwise[eval]"') from error
    try:
        return ir_measures.parse_measure(measure)
    except (NameError, ValueError, SyntaxError) as error:
        raise ValueError(f"measures: {measure!r} is not known to ir-measures ({error}).") from error


def _checked(row: Mapping[str, Any], index: int) -> dict[str, Any]:
    docs, labels, missed = row["docs"], list(row["labels"]), list(row.get("missed") or [])
    if len(docs) == 0:
        raise ValueError(f"documents of query {index} is an empty list.")
    if len(docs) != len(labels):
        raise ValueError(f"labels of query {index}: {len(labels)} labels for {len(docs)} documents.")
    for place, label in enumerate([*labels, *missed]):
        if label != label or label < 0 or label != int(label):
            raise ValueError(
                f"labels of query {index}, document {place} is {label!r}: grades are whole numbers from 0 on, 0 for "
                "not relevant. Scores of a teacher are no judgments."
            )
    return {
        "query": row["query"],
        "docs": list(docs),
        "labels": [int(label) for label in labels],
        "missed": [int(label) for label in missed],
    }
