"""The TREC example from end to end on a tiny collection: the reranked run, its figures, and faults by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ir_measures
import pytest
from sentence_transformers import CrossEncoder
from tiny_models import tiny_bert

ROOT = Path(__file__).parents[1] / "examples"
sys.path[:0] = [str(ROOT / "ms_marco"), str(ROOT / "trec")]

import train_listwise  # noqa: E402
import train_trec  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")
QUERIES = 24
WORDS = ["bear", "paris", "light", "stone", "river", "cloud"]


@pytest.fixture
def collection(tmp_path: Path) -> dict[str, Path]:
    """24 queries, 6 documents each, graded 0 to 2; the last query is not judged, each second misses a document."""
    paths = {name: tmp_path / name for name in ("first.run", "qrels.txt", "docs.jsonl", "queries.tsv", "tiny")}
    docs = {f"d{i}": f"a {word} in place {i}" for i, word in enumerate(WORDS * 4)}
    paths["docs.jsonl"].write_text("".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in docs.items()))
    paths["queries.tsv"].write_text("".join(f"q{i}\twhere is the {WORDS[i % 6]}, {i}\n" for i in range(QUERIES)))
    run, qrels = [], []
    for i in range(QUERIES):
        own = [f"d{(i * 5 + step * 7) % 24}" for step in range(6)]
        run += [f"q{i} Q0 {doc} {rank} {9.5 - rank} bm25" for rank, doc in enumerate(own, 1)]
        grades = {own[i % 6]: 2, own[(i + 2) % 6]: 1, own[(i + 3) % 6]: 0}
        if i % 2:
            grades[f"d{(i * 5 + 1) % 24}"] = 1  # 7 is a unit modulo 24, so that six steps of it do not reach this one
        if i < QUERIES - 1:
            qrels += [f"q{i} 0 {doc} {grade}" for doc, grade in grades.items()]
    paths["first.run"].write_text("\n".join(run) + "\n")
    paths["qrels.txt"].write_text("\n".join(qrels) + "\n")
    tiny_bert().save_pretrained(str(paths["tiny"]))
    return paths


def words(paths: Mapping[str, Path], output: Path, *more: str, **replaced: Any) -> list[str]:
    files = {"run": "first.run", "qrels": "qrels.txt", "corpus": "docs.jsonl", "queries": "queries.tsv"}
    options = {f"--{name}": str(paths[file]) for name, file in files.items()} | {"--model": str(paths["tiny"])}
    options |= {f"--{name}": str(value) for name, value in replaced.items()}
    common = f"--output_dir {output} --max_steps 4 --use_cpu true --disable_tqdm true --learning_rate 0.003".split()
    return [word for option in options.items() for word in option] + common + list(more)


def lines(path: Path) -> list[list[str]]:
    return [line.split(" ") for line in path.read_text().splitlines()]


def check_run(path: Path, candidates: dict[str, set[str]]) -> None:
    """Six columns; ranks from 1; scores fall; just the documents that were to be reranked."""
    found: dict[str, list[list[str]]] = {}
    for row in lines(path):
        assert len(row) == 6
        assert (row[1], row[5]) == ("Q0", "st-listwise")
        found.setdefault(row[0], []).append(row)
    for own in found.values():
        assert [int(row[3]) for row in own] == list(range(1, len(own) + 1))
        scores = [float(row[4]) for row in own]
        assert scores == sorted(scores, reverse=True)
        assert len(set(scores)) > 1
    assert {query: {row[2] for row in own} for query, own in found.items()} == candidates


def test_a_reranked_run_has_all_documents_and_the_figures_that_ir_measures_finds_in_it(
    tmp_path: Path, collection: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """After training in half precision, too: they are of what is saved, not of scores that are rounded and tie."""
    output = tmp_path / "out"
    more = ["--measures", "nDCG@10", "AP(rel=2)", "R@5", "--folds", "3", "--max_docs", "4", "--bf16", "true"]
    assert train_listwise.main(words(collection, output, *more), train_trec.TrecArguments) == 0
    written = lines(output / "reranked.run")
    tested = {row[0] for row in written}
    assert len(tested) == QUERIES // 3
    candidates: dict[str, set[str]] = {query: set() for query in tested}
    for row in lines(collection["first.run"]):
        if row[0] in tested:
            candidates[row[0]].add(row[2])
    check_run(output / "reranked.run", candidates)

    results = json.loads((output / "metrics.json").read_text())
    qrels = [row for row in ir_measures.read_trec_qrels(str(collection["qrels.txt"])) if row.query_id in tested]
    for name, path in ("after", output / "reranked.run"), ("first stage", collection["first.run"]):
        run = [row for row in ir_measures.read_trec_run(str(path)) if row.query_id in tested]
        expected = ir_measures.calc_aggregate(map(ir_measures.parse_measure, more[1:4]), qrels, run)
        assert results["metrics"]["test"][name] == pytest.approx(
            {str(measure): value for measure, value in expected.items()}, abs=1e-5
        )
    assert set(results["metrics"]["held-out"]) == {"first stage", "before", "after"}
    assert results["counts"]["held-out"]["queries"] == 1
    printed = capsys.readouterr().out
    assert "R@5" in printed
    assert f"are in {output}: reranked.run, final/, " in printed

    model = CrossEncoder(str(output / "final"))
    texts = dict(line.split("\t") for line in collection["queries.tsv"].read_text().splitlines())
    docs = {row["_id"]: row["text"] for row in map(json.loads, collection["docs.jsonl"].read_text().splitlines())}
    scores = model.predict([(texts[row[0]], docs[row[2]]) for row in written])
    assert scores.tolist() == pytest.approx([float(row[4]) for row in written], abs=1e-5)
    card = (output / "final" / "README.md").read_text(encoding="utf-8")
    assert "nDCG@10 after training against first stage, test queries" in card
    for picture in ("loss_curve.png", "per_query.png"):
        assert (output / picture).read_bytes().startswith(b"\x89PNG")


def test_queries_of_the_test_run_are_not_trained_on_and_those_without_judgments_are_reranked(
    tmp_path: Path, collection: dict[str, Path]
) -> None:
    test_run = tmp_path / "test.run"
    kept = [row for row in lines(collection["first.run"]) if row[0] in ("q3", "q23")]
    test_run.write_text("".join(" ".join(row) + "\n" for row in kept))
    more = ["--depth", "4"]
    arguments = words(collection, tmp_path / "out", *more, test_run=test_run)
    assert train_listwise.main(arguments, train_trec.TrecArguments) == 0
    check_run(
        tmp_path / "out" / "reranked.run",
        {query: {row[2] for row in kept if row[0] == query and int(row[3]) <= 4} for query in ("q3", "q23")},
    )
    results = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert results["counts"]["train"]["queries"] == QUERIES - 2
    assert len(results["per_query"]["test"]["after"]["nDCG@10"]) == 1  # nobody judged q23


def test_folds_share_out_the_queries(tmp_path: Path, collection: dict[str, Path]) -> None:
    parts = []
    for fold in range(5):
        script = train_trec.TrecArguments(
            run=str(collection["first.run"]),
            qrels=str(collection["qrels.txt"]),
            corpus=str(collection["docs.jsonl"]),
            queries=str(collection["queries.tsv"]),
            fold=fold,
        )
        train, evaluation, counts = script.prepare_data(tmp_path)
        test = set(evaluation["test"]["query_id"])
        assert train.column_names == ["query", "docs", "labels"]
        assert not set(train["query"]) & set(evaluation["test"]["query"])
        assert not set(train["query"]) & set(evaluation["held-out"]["query"])
        assert len(train) + counts["held-out"]["queries"] == counts["train"]["kept"]
        parts.append(test)
    assert sorted(query for part in parts for query in part) == sorted(f"q{i}" for i in range(QUERIES))
    assert {len(part) for part in parts} == {4, 5}


@pytest.mark.parametrize(
    ("replaced", "more", "message"),
    [
        ({"run": "absent.run"}, [], "absent.run is not a file"),
        ({"qrels": "absent.qrels"}, [], "absent.qrels is not a file"),
        ({"corpus": "absent.jsonl"}, [], "absent.jsonl is not a file"),
        ({"test_run": "absent.test.run"}, [], "absent.test.run is not a file"),
        ({"test_qrels": "test.qrels"}, [], "--test_qrels is for a --test_run"),
        ({"fold": 5}, [], "--fold 5 --folds 5: needs 0 <= fold < folds <= 24"),
        ({"depth": 0}, [], "depth=0 must be a whole number of at least 1"),
        ({"max_docs": 1}, [], "max_docs=1 must be a whole number of at least 2"),
        ({"measures": "nDCK@10"}, [], "'nDCK@10' is not known"),
        ({"loss": "LambdaLos"}, [], "Did you mean LambdaLoss"),
        ({}, ["--dataset", "demo"], "--dataset demo: not known"),
    ],
)
def test_mistakes_end_with_status_2_name_what_is_wrong_and_write_nothing(
    tmp_path: Path,
    collection: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    replaced: dict[str, Any],
    more: list[str],
    message: str,
) -> None:
    arguments = words(collection, tmp_path / "out", *more, **replaced)
    assert train_listwise.main(arguments, train_trec.TrecArguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
