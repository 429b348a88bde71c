"""The distillation example: tables and rows become runs, labels are the teacher's, a model may be the teacher."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import CrossEncoder
from tiny_models import tiny_bert, tiny_set

from st_listwise import SetRankCrossEncoder

ROOT = Path(__file__).parents[1] / "examples"
sys.path[:0] = [str(ROOT / name) for name in ("ms_marco", "trec", "distillation")]

import teacher  # noqa: E402
import train_distillation  # noqa: E402
import train_listwise  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")
WORDS = ["bear", "paris", "light", "stone", "river", "cloud"]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """20 training and 5 test questions of 4 passages as rows, and tables of scores under another column as well."""
    paths = {name: tmp_path / name for name in ("train.jsonl", "test.jsonl", "train.tsv", "test.tsv", "tiny")}
    generator = np.random.default_rng(0)
    for name, first, size in ("train", 0, 20), ("test", 20, 5):
        rows, table = [], ["query_id\tpassage_id\tweak\tgood"]
        for i in range(first, first + size):
            texts = [f"a {WORDS[(i + step) % 6]} number {i}" for step in range(4)]
            ids = [f"D{i}-{step}" for step in range(4)]
            passages = {"passage_text": texts, "is_selected": [int(step == i % 4) for step in range(4)]}
            query = f"where is the {WORDS[i % 6]}, {i}"
            rows.append({"query_id": f"Q{i}", "query": query, "passage_ids": ids, "passages": passages})
            table += [f"Q{i}\t{id}\t{a:.6f}\t{b:.6f}" for id, a, b in zip(ids, *generator.random((2, 4)))]
        paths[f"{name}.jsonl"].write_text("\n".join(map(json.dumps, rows)) + "\n")
        paths[f"{name}.tsv"].write_text("\n".join(table) + "\n")
    tiny_bert(1).save_pretrained(str(paths["tiny"]))
    return paths


def run(paths: dict[str, Path], output: Path, arguments: str) -> int:
    common = f"--model {paths['tiny']} --output_dir {output} --max_steps 3 --use_cpu true --disable_tqdm true"
    return train_listwise.main(
        f"{common} {arguments.format(**{name.replace('.', '_'): path for name, path in paths.items()})}".split(),
        train_distillation.DistillationArguments,
    )


TABLES = "--run {train_tsv} --rows {train_jsonl} --test_run {test_tsv} --test_rows {test_jsonl}"


def scores_of(path: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in ir_measures.read_trec_run(str(path)):
        found.setdefault(row.query_id, {})[row.doc_id] = row.score
    return found


def test_a_table_of_scores_is_learned_and_the_student_is_measured_by_judgments(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    output = tmp_path / "out"
    assert run(files, output, TABLES + " --column good --max_docs 3") == 0
    table = [line.split("\t") for line in files["test.tsv"].read_text().splitlines()[1:]]
    good = scores_of(output / "test.teacher.run")
    assert {(query, doc): score for query, own in good.items() for doc, score in own.items()} == {
        (query, doc): float(score) for query, doc, _, score in table
    }
    qrels = [
        ir_measures.Qrel(row["query_id"], doc, label)
        for row in map(json.loads, files["test.jsonl"].read_text().splitlines())
        for doc, label in zip(row["passage_ids"], row["passages"]["is_selected"])
    ]
    results = json.loads((output / "metrics.json").read_text())
    for name, path in ("teacher", output / "test.teacher.run"), ("after", output / "reranked.run"):
        written = scores_of(path)
        assert {query: set(own) for query, own in written.items()} == {query: set(own) for query, own in good.items()}
        found = ir_measures.calc_aggregate([ir_measures.nDCG @ 10, ir_measures.AP], qrels, written)
        assert results["metrics"]["test"][name]["nDCG@10"] == pytest.approx(found[ir_measures.nDCG @ 10], abs=1e-5)
        assert results["metrics"]["test"][name]["AP"] == pytest.approx(found[ir_measures.AP], abs=1e-5)
    assert results["loss"]["name"] == "RankNetLoss"
    assert (output / "per_query.png").read_bytes().startswith(b"\x89PNG")


def test_labels_are_the_teachers_and_judgments_are_not_learned(tmp_path: Path, files: dict[str, Path]) -> None:
    """Rows in reverse order of the score column, so that their place tells nothing."""
    for labels, expected in ("ranks", [3.0, 2.0, 1.0, 0.0]), ("scores", None):
        script = train_distillation.DistillationArguments(
            run=str(files["train.tsv"]),
            rows=str(files["train.jsonl"]),
            test_run=str(files["test.tsv"]),
            test_rows=str(files["test.jsonl"]),
            labels=labels,
        )
        train, _, _ = script.prepare_data(tmp_path / "out")
        table = [line.split("\t") for line in files["train.tsv"].read_text().splitlines()[1:]]
        for row in train:
            number = row["query"].rpartition(" ")[2]
            own = sorted((float(line[2]) for line in table if line[0] == f"Q{number}"), reverse=True)
            assert row["labels"] == (expected or own)
            best = max((line for line in table if line[0] == f"Q{number}"), key=lambda line: float(line[2]))
            step = int(best[1].rpartition("-")[2])
            assert row["docs"][0] == f"a {WORDS[(int(number) + step) % 6]} number {number}"


@pytest.mark.parametrize("kind", ["pointwise", "set"])
def test_a_model_ranks_the_rows_and_is_the_teacher(tmp_path: Path, files: dict[str, Path], kind: str) -> None:
    folder = tmp_path / kind
    (tiny_bert(5) if kind == "pointwise" else tiny_set(5)).save_pretrained(str(folder))
    output = tmp_path / "out"
    assert run(files, output, f"--teacher_model {folder} --rows {{train_jsonl}} --test_rows {{test_jsonl}}") == 0
    loaded = CrossEncoder(str(folder)) if kind == "pointwise" else SetRankCrossEncoder(str(folder))
    written = scores_of(output / "train.teacher.run")
    for row in map(json.loads, files["train.jsonl"].read_text().splitlines()):
        texts = row["passages"]["passage_text"]
        expected = {row["passage_ids"][own["corpus_id"]]: own["score"] for own in loaded.rank(row["query"], texts)}
        assert written[row["query_id"]] == pytest.approx({key: float(own) for key, own in expected.items()}, abs=1e-5)
    assert isinstance(CrossEncoder(str(output / "final")), CrossEncoder)  # the student is a stock model either way


def test_without_judgments_the_teacher_chooses_the_checkpoint_and_the_card_says_so(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    parts = tmp_path / "parts"
    for name in ("train", "test"):
        own = teacher.read_rows(files[f"{name}.jsonl"])
        teacher.save(parts / f"{name}.run", teacher.run_text(teacher.read_table(files[f"{name}.tsv"], None)))
        teacher.save(parts / f"{name}.qrels", teacher.qrels_text(own.grades))
        for part, texts in ("docs", own.corpus), ("queries", own.queries):
            teacher.save(parts / f"{name}.{part}", "".join(f"{id}\t{text}\n" for id, text in texts.items()))
    trained = f"--run {parts}/train.run --corpus {parts}/train.docs --queries {parts}/train.queries"
    tested = f"--test_run {parts}/test.run --test_corpus {parts}/test.docs --test_queries {parts}/test.queries"
    assert run(files, tmp_path / "out", f"{trained} {tested} --test_qrels {parts}/test.qrels") == 0
    results = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert results["metrics"]["held-out"]["teacher"]["nDCG@10"] == pytest.approx(1.0)  # it agrees with itself
    assert results["metrics"]["test"]["teacher"]["nDCG@10"] < 1
    card = (tmp_path / "out" / "final" / "README.md").read_text(encoding="utf-8")
    assert "agreement with the teacher" in card
    assert '"teacher" is the order of the teacher' in card


def test_real_wikiqa_tables_and_rows_fit(real_data: Path, tmp_path: Path) -> None:
    """SOURCE.md: 633 test questions with 6,165 sentences, 293 of them positive, and a CNN score for each."""
    own = teacher.read_rows(real_data / "wikiqa" / "test.jsonl")
    assert (len(own.queries), sum(map(len, own.grades.values()))) == (633, 6165)
    assert set().union(*own.grades.values()) == set(own.corpus)  # a sentence may answer several questions
    assert sum(sum(grades.values()) for grades in own.grades.values()) == 293
    scores = teacher.read_table(real_data / "wikiqa" / "teacher_cnn.test.tsv", "cnn_cnt")
    assert {query: set(docs) for query, docs in scores.items()} == {
        query: set(docs) for query, docs in own.grades.items()
    }


BAD_ROW = json.dumps({"query": "q", "query_id": "Q1", "passages": {"passage_text": ["a"], "is_selected": [1]}})
MISTAKES = [
    ("--run absent.run --rows {train_jsonl}", "absent.run is not a file"),
    ("--run {train_tsv} --rows absent.jsonl", "absent.jsonl is not a file"),
    ("--rows {train_jsonl}", "There is no --run, and no --rows in its place"),
    ("--run {train_tsv}", "There is no --corpus, and no --rows in its place"),
    ("--run {train_tsv} --rows {train_jsonl} --corpus docs.jsonl", "leave out --corpus"),
    (
        "--run {train_tsv} --rows {train_jsonl} --column best",
        "train.tsv has no column 'best' of scores, only weak, good",
    ),
    ("--run {bad_tsv} --rows {train_jsonl}", "bad.tsv, line 2: expected 3 columns and a number as score"),
    ("--run {train_tsv} --rows {bad_jsonl}", "bad.jsonl, line 1: there is no 'passage_ids'"),
    (TABLES + " --labels rank", "labels='rank' is not known"),
    (TABLES + " --loss RankNet", "Did you mean RankNetLoss"),
    (TABLES + " --teacher_run a.run", "--teacher_run a.run: not known"),
    ("--teacher_model absent/teacher --rows {train_jsonl}", "--teacher_model 'absent/teacher'"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[message[:30] for _, message in MISTAKES])
def test_mistakes_end_with_status_2_and_name_what_is_wrong(
    tmp_path: Path,
    files: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    message: str,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    files |= {"bad.tsv": tmp_path / "bad.tsv", "bad.jsonl": tmp_path / "bad.jsonl"}
    files["bad.tsv"].write_text("query\tdocument\tscore\nQ1\tD1-0\thigh\n")
    files["bad.jsonl"].write_text(BAD_ROW + "\n")
    assert run(files, tmp_path / "out", arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "final").exists()


def test_what_tells_a_table_from_a_run(tmp_path: Path, files: dict[str, Path]) -> None:
    path: Any = tmp_path / "a.run"
    path.write_text("Q1\tQ0\tD1\t1\t0.5\ttag\n")
    assert teacher.is_table(files["train.tsv"])
    assert not teacher.is_table(path)


def test_of_several_processes_one_ranks_and_writes(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others come after it: a file that they wrote again would be another one to the readers' cache."""
    path = tmp_path / "a.run"
    teacher.save(path, "as it was")
    before = path.stat()
    teacher.save(path, "as it was")
    assert path.stat() == before
    teacher.save(path, "changed")
    assert path.read_text() == "changed"
    monkeypatch.setattr(teacher.PartialState, "is_main_process", False)
    teacher.rank_by_model("absent", Dataset.from_list([]), path)
    assert path.read_text() == "changed"
