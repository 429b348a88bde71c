"""GradedRerankingEvaluator: any measure of ir-measures on reranked lists; missed documents count, ties are fair."""

from __future__ import annotations

import csv
import logging
import math
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
        measures: As ir-measures writes them, such as "nDCG@10", "AP(rel=2)" or "RR@10", or its objects. The first is
            the one to choose models by.
        name: Goes before the keys: ``metric_for_best_model`` is ``"eval_{name}_{measure}"``, or ``"eval_{measure}"``
            without a name.
        batch_size: Pairs that are scored at once.
        show_progress_bar: Whether to show progress.
        write_csv: Write the values of each query into the output folder, a file for each call.

    Raises:
        ValueError: no lists, or one without a column or with None in place of a text; labels that are no whole numbers
            from 0 on or do not fit the documents; no measure, or one that is not known or cannot be computed.
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
        several = isinstance(measures, Iterable) and not isinstance(measures, str)
        names = [str(measure) for measure in (measures if several else [measures])]
        if not names:
            raise ValueError('measures is empty: name one at least, such as "nDCG@10".')
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

    @property
    def keys(self) -> list[str]:
        """What it returns values of; in the trainer's log and ``metric_for_best_model`` "eval_" goes before each."""
        return [self._key(measure) for measure in self.measures]

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

        Raises:
            ValueError: the model has no ``predict`` or more than one output, or gives NaN or infinite scores.
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
        """Measure → value of each query, from the scores of each list of :attr:`rows`.

        Raises:
            ValueError: scores do not fit the lists, or one is NaN or infinite.
        """
        import ir_measures

        if len(scores) != len(self.rows):
            raise ValueError(
                f"There are {len(scores)} lists of scores for {len(self.rows)} lists with a relevant document."
            )
        generator = np.random.default_rng(12)
        qrels, run = [], []
        for number, (row, own) in enumerate(zip(self.rows, map(np.asarray, scores))):
            if own.shape != (len(row["docs"]),):
                raise ValueError(f"Query {number} has {len(row['docs'])} documents, but scores of shape {own.shape}.")
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
        parsed = ir_measures.parse_measure(measure)
    except (NameError, ValueError, SyntaxError, TypeError) as error:
        raise ValueError(f"measures: {measure!r} is not known to ir-measures ({error}).") from error
    if fault := _measure_fault(parsed):
        raise ValueError(
            f"measures: {measure!r} cannot be computed here: {fault}. Its parameters, written as in AP(rel=2)@10: "
            f"{', '.join(parsed.SUPPORTED_PARAMS) or 'none'}."
        )
    return parsed


def _measure_fault(measure: Any) -> str:
    """Why a measure cannot be computed, which ir-measures would tell at the first evaluation; "" if it can."""
    import ir_measures

    known = measure.SUPPORTED_PARAMS
    if needed := [name for name, info in known.items() if info.required and name not in measure.params]:
        return f"it needs {', '.join(needed)}"
    if unknown := [name for name in measure.params if name not in known]:
        return f"it has no {', '.join(unknown)}"
    cutoff = measure.params.get("cutoff", 1)
    if isinstance(cutoff, int) and cutoff < 1:  # trec_eval's library would end the process
        return f"{cutoff} as cutoff is below 1"
    qrels = [ir_measures.Qrel("0", str(doc), label) for doc, label in enumerate((1, 0))]
    try:
        list(ir_measures.iter_calc([measure], qrels, [ir_measures.ScoredDoc("0", "0", 1.0)]))
    except Exception as error:  # providers raise what they like
        return str(error).rstrip(".") or type(error).__name__
    return ""


def _checked(row: Mapping[str, Any], index: int) -> dict[str, Any]:
    _check_columns(row, index)
    docs, labels, missed = row["docs"], list(row["labels"]), list(row.get("missed") or [])
    if len(docs) == 0:
        raise ValueError(f"documents of query {index} is an empty list.")
    if len(docs) != len(labels):
        raise ValueError(f"labels of query {index}: {len(labels)} labels for {len(docs)} documents.")
    if bare := [place for place, doc in enumerate(docs) if doc is None]:
        raise ValueError(f"documents of query {index}, document {bare[0]} is None: drop it and its label.")
    return {
        "query": row["query"],
        "docs": list(docs),
        "labels": [_grade(label, f"labels of query {index}, document {place}") for place, label in enumerate(labels)],
        "missed": [_grade(label, f"missed of query {index}, place {place}") for place, label in enumerate(missed)],
    }


def _check_columns(row: Mapping[str, Any], index: int) -> None:
    """ValueError where it is no row, a column is not there, or is no list."""
    if not isinstance(row, Mapping):
        raise ValueError(
            f"query {index} is {type(row).__name__} {row!r:.60}, expected a row with query, docs and labels. Give a "
            "list of dictionaries, or one data set, not a DatasetDict."
        )
    given = [name for name, own in row.items() if own is not None]
    if missing := [name for name in ("query", "docs", "labels") if name not in given]:
        raise ValueError(f"query {index} has no {', '.join(missing)}, only {', '.join(given)}. {_remedy(row)}")
    for name in ("docs", "labels"):
        if isinstance(row[name], str) or not isinstance(row[name], Iterable):
            raise ValueError(f"{name} of query {index} is {type(row[name]).__name__}, expected a list.")


def _remedy(row: Mapping[str, Any]) -> str:
    """What to make of a row that lacks a column."""
    if "positive" in row and "negative" in row:  # as sentence-transformers' evaluators take them
        return 'Make "docs" of [*positive, *negative], "labels" of [1] * len(positive) + [0] * len(negative).'
    if "positive" in row and "documents" in row:
        return (
            'Make "docs" of documents, "labels" of [int(doc in positive) for doc in documents], and "missed" of '
            "[1] * (number of the other positives)."
        )
    return "Each row needs a query, its documents, and a label for each of them."


def _grade(label: Any, place: str) -> int:
    try:
        if math.isfinite(label) and label >= 0 and label == int(label):
            return int(label)
    except (TypeError, OverflowError):  # no number, or one too large for a float
        pass
    raise ValueError(
        f"{place} is {label!r}: grades are whole numbers from 0 on, 0 for not relevant. Scores of a teacher are no "
        "judgments."
    )
