"""Documents drawn anew in each epoch: what reaches the loss in the real trainer, with workers, after a resumption."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import CrossEncoderTrainer, CrossEncoderTrainingArguments
from tiny_models import tiny_bert

from st_listwise import ListMLELoss
from st_listwise.data import EpochSampler

QUERIES, DOCS = 5, 12
ROWS = Dataset.from_dict(
    {
        "query": [f"q {query}" for query in range(QUERIES)],
        "docs": [[f"doc {query} {place}" for place in range(DOCS)] for query in range(QUERIES)],
        "labels": [[0] * 3 + [2] + [0] * 8 for _ in range(QUERIES)],
    }
)


class Recorder(ListMLELoss):
    """Remembers which documents came to it."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.seen: list[tuple[str, list[str]]] = []

    def prepare(self, inputs: Any, *rest: Any) -> Any:
        self.seen += [(query, list(docs)) for query, docs in zip(*inputs)]
        return super().prepare(inputs, *rest)


def epochs_seen(
    folder: Path, rows: Any = ROWS, resume: Path | None = None, **options: Any
) -> list[tuple[str, list[str]]]:
    """Queries and their documents, as they reach the loss."""
    sampler = EpochSampler(max_docs=4)
    model = tiny_bert()
    loss = Recorder(model)
    args = CrossEncoderTrainingArguments(
        str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        **{"save_strategy": "no", **options},
    )
    data = (
        {name: sampler.attach(part) for name, part in rows.items()} if isinstance(rows, dict) else sampler.attach(rows)
    )
    data = DatasetDict(data) if isinstance(rows, dict) else data
    trainer = CrossEncoderTrainer(model, args, data, loss=loss, callbacks=[sampler])
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return loss.seen


def by_epoch(seen: list[tuple[str, list[str]]], queries: int = QUERIES) -> list[dict[str, list[str]]]:
    return [dict(seen[start : start + queries]) for start in range(0, len(seen), queries)]


def test_in_each_epoch_positives_stay_and_other_negatives_come(tmp_path: Path) -> None:
    epochs = by_epoch(epochs_seen(tmp_path))
    assert len(epochs) == 3
    for epoch in epochs:
        assert len(epoch) == QUERIES
        for query, docs in epoch.items():
            assert len(set(docs)) == 4
            assert f"doc {query[2:]} 3" in docs
            assert docs == sorted(docs, key=lambda doc: int(doc.split()[2]))  # in the order of the list
    for query in epochs[0]:
        assert len({tuple(epoch[query]) for epoch in epochs}) > 1
    assert len({doc for epoch in epochs for docs in epoch.values() for doc in docs}) > 5 * QUERIES


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_draw_what_the_main_process_would(tmp_path: Path, persistent: bool) -> None:
    workers = {"dataloader_num_workers": 2, "dataloader_persistent_workers": persistent}
    assert epochs_seen(tmp_path, **workers) == epochs_seen(tmp_path)


@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_resumed_run_draws_what_one_without_interruption_drew(tmp_path: Path, step: int) -> None:
    whole = epochs_seen(tmp_path, save_strategy="steps", save_steps=1)
    resumed = epochs_seen(tmp_path, resume=tmp_path / f"checkpoint-{step}")  # in epoch 0, at its end, in epoch 1
    batches = [2, 2, 1] * 3
    assert resumed == whole[sum(batches[:step]) :]


def test_each_of_several_data_sets_is_told_the_epoch(tmp_path: Path) -> None:
    seen = epochs_seen(tmp_path, {"a": ROWS.select([0, 1]), "b": ROWS.select([2, 3])})
    assert seen[:4] != seen[4:8]
    for query in ("q 0", "q 3"):
        assert len({tuple(docs) for own, docs in seen if own == query}) > 1


def test_without_the_callback_training_is_refused(tmp_path: Path) -> None:
    model = tiny_bert()
    args = CrossEncoderTrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, report_to="none")
    with pytest.raises(ValueError, match=r"give the same object to the trainer, .*callbacks=\[sampler\]"):
        CrossEncoderTrainer(model, args, EpochSampler(4).attach(ROWS), loss=ListMLELoss(model)).train()


def test_the_seed_and_the_epoch_decide_and_nothing_else() -> None:
    def drawn(seed: int, epoch: int, places: list[int]) -> dict[str, list[str]]:
        sampler = EpochSampler(4, seed=seed)
        sampler.set_epoch(epoch)
        batch = sampler.attach(ROWS)[places]
        return dict(zip(batch["query"], batch["docs"]))

    assert drawn(1, 5, [0, 1, 2, 3, 4]) == drawn(1, 5, [4, 3]) | drawn(1, 5, [0, 1, 2])
    assert drawn(1, 5, [0, 1]) != drawn(1, 6, [0, 1])
    assert drawn(1, 5, [0, 1]) != drawn(2, 5, [0, 1])


def draws(labels: list[float], count: int, **options: Any) -> list[list[int]]:
    """Places that are drawn in each of so many epochs."""
    sampler = EpochSampler(**options)
    rows = sampler.attach(
        Dataset.from_dict({"query": ["q"], "docs": [list(map(str, range(len(labels))))], "labels": [labels]})
    )
    found = []
    for epoch in range(count):
        sampler.set_epoch(epoch)
        assert [labels[int(place)] for place in rows[0]["docs"]] == rows[0]["labels"]
        found.append([int(place) for place in rows[0]["docs"]])
    return found


@given(
    labels=st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.0, 2.0]), min_size=1, max_size=15),
    max_docs=st.integers(2, 8),
    strategy=st.sampled_from(["uniform", "top-heavy"]),
)
def test_positives_are_kept_best_first_and_one_place_is_left_for_a_negative(
    labels: list[float], max_docs: int, strategy: Any
) -> None:
    for places in draws(labels, 2, max_docs=max_docs, strategy=strategy):
        kept = sorted((labels[place] for place in places), reverse=True)
        positives = sorted((label for label in labels if label > 0), reverse=True)
        assert len(places) == min(max_docs, len(labels))
        assert places == sorted(set(places))
        if len(labels) > max_docs and len(positives) < len(labels):
            room = min(len(positives), max_docs - 1)
            assert kept[:room] == positives[:room]
            assert min(kept) == 0


@pytest.mark.parametrize("max_docs", [2, 3])
def test_top_heavy_draws_negatives_by_their_place_and_uniform_does_not(max_docs: int) -> None:
    epochs = 800
    for strategy, weights in (
        ("uniform", {0: 1, 2: 1, 3: 1, 4: 1}),
        ("top-heavy", {0: 1, 2: 1 / 3, 3: 1 / 4, 4: 1 / 5}),
    ):
        drawn = draws([0, 1, 0, 0, 0], epochs, max_docs=max_docs, strategy=strategy)
        found = Counter(place for places in drawn for place in places)
        assert found[1] == epochs  # the positive
        for place, share in chances(weights, max_docs - 1).items():
            deviation = math.sqrt(share * (1 - share) / epochs)
            assert found[place] / epochs == pytest.approx(share, abs=4 * deviation)


def chances(weights: dict[int, float], count: int) -> dict[int, float]:
    """How probable it is that each place is among so many drawn one after the other, without putting back."""
    shares = dict.fromkeys(weights, 0.0)
    for drawn in itertools.permutations(weights, count):
        left, chance = sum(weights.values()), 1.0
        for place in drawn:
            chance *= weights[place] / left
            left -= weights[place]
        for place in drawn:
            shares[place] += chance
    return shares


def test_of_a_teachers_ranking_all_documents_are_drawn() -> None:
    labels = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]
    assert {place for places in draws(labels, 60, max_docs=2, keep_above=math.inf) for place in places} == set(
        range(6)
    )
    assert all(0 in places for places in draws(labels, 10, max_docs=2, keep_above=4.0))


def test_identifiers_are_cut_with_their_documents() -> None:
    sampler = EpochSampler(3)
    sampler.set_epoch(0)
    rows = ROWS.add_column("doc_ids", [[f"{place}" for place in range(DOCS)]] * QUERIES)
    for row in sampler.attach(rows):
        assert [doc.split()[2] for doc in row["docs"]] == row["doc_ids"]


def test_options_and_data_sets_that_make_no_sense_are_refused() -> None:
    for size in (1, "16"):
        with pytest.raises(ValueError, match=f"max_docs={size!r} must be a whole number of at least 2"):
            EpochSampler(size)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='expected "uniform" or "top-heavy"'):
        EpochSampler(4, "bottom")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="There is no column docs, labels, only query"):
        EpochSampler(4).attach(ROWS.select_columns(["query"]))
    with pytest.raises(ValueError, match="has the format torch"):
        EpochSampler(4).attach(ROWS.with_format("torch"))


@pytest.mark.parametrize(
    ("docs", "labels", "message"),
    [
        (["a", "b", "c"], [1, 0], "The row of query 7 has 2 labels for 3 documents"),
        (["a", "b"], [1, 0, 0], "3 labels for 2 documents"),
        (["a", "b"], None, "no labels for 2 documents"),
    ],
)
def test_labels_that_do_not_fit_were_hidden_by_the_sample(docs: Any, labels: Any, message: str) -> None:
    """Of three documents with two labels the loss saw two, and no fault."""
    sampler = EpochSampler(2)
    sampler.set_epoch(0)
    row = {"query": [7], "docs": [["a", "b", "c", "d"]], "labels": [[1, 0, 0, 0]]}
    assert len(sampler(row)["docs"][0]) == 2  # an identifier as query is the loss's matter
    with pytest.raises(ValueError, match=message):
        sampler({"query": [7], "docs": [docs], "labels": [labels]})
