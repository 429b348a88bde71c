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


def run(paths: dict[str, Path], output: Path, arguments: str, *more: str) -> int:
    common = f"--model {paths['tiny']} --output_dir {output} --max_steps 3 --use_cpu true --disable_tqdm true"
    words = arguments.format(**{name.replace(".", "_"): path for name, path in paths.items()}).split()
    return train_listwise.main([*common.split(), *words, *more], train_distillation.DistillationArguments)


def as_trec(files: dict[str, Path], folder: Path) -> str:
    """The rows as a collection, and the options that name its parts but for the runs."""
    options = []
    for name, prefix in ("train", ""), ("test", "test_"):
        own = teacher.read_rows(files[f"{name}.jsonl"])
        texts = {"corpus": own.corpus, "queries": own.queries}
        contents = {part: "".join(f"{id}\t{text}\n" for id, text in known.items()) for part, known in texts.items()}
        for part, content in {**contents, "qrels": teacher.qrels_text(own.grades)}.items():
            options.append(f"--{prefix}{part} {teacher.save(folder / f'{name}.{part}', content)}")
    return " ".join(options)


def with_single_passages(path: Path) -> None:
    """Every other row keeps its relevant passage only."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[::2]:
        best = row["passages"]["is_selected"].index(1)
        row["passage_ids"] = [row["passage_ids"][best]]
        row["passages"] = {"passage_text": [row["passages"]["passage_text"][best]], "is_selected": [1]}
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")


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


def test_a_first_stage_is_ranked_by_a_model_in_a_new_folder_whatever_its_ranks_and_the_models_name(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    """After all pairs were scored, there was no folder; the name gave 7 columns; rank 1 for all lost all lists."""
    parts, best = tmp_path / "parts", {}
    for name in ("train", "test"):
        with_single_passages(files[f"{name}.jsonl"])
        known = teacher.read_rows(files[f"{name}.jsonl"]).grades
        scores = teacher.read_table(files[f"{name}.tsv"], None)
        kept = {query: {doc: scores[query][doc] for doc in own} for query, own in known.items()}
        lines = [f"{query} Q0 {doc} 1 {score} bm25" for query, own in kept.items() for doc, score in own.items()]
        teacher.save(parts / f"{name}.run", "\n".join(lines))
        best[name] = {query: set(sorted(own, key=lambda doc: -own[doc])[:3]) for query, own in kept.items()}
    tiny_set(5).save_pretrained(str(tmp_path / "my model"))
    output = tmp_path / "new" / "out"
    given = f"--run {parts}/train.run --test_run {parts}/test.run --depth 3 {as_trec(files, parts)}"
    assert run(files, output, given, "--teacher_model", str(tmp_path / "my model")) == 0
    for name, path in ("train", "train.teacher.run"), ("test", "test.teacher.run"), ("test", "reranked.run"):
        assert {query: set(own) for query, own in scores_of(output / path).items()} == best[name]
    assert {line.split(" ")[5] for line in (output / "train.teacher.run").read_text().splitlines()} == {"my-model"}
    results = json.loads((output / "metrics.json").read_text())
    assert len(results["per_query"]["test"]["after"]["nDCG@10"]) == sum(
        any(known[query][doc] for doc in own) for query, own in best["test"].items()
    )  # a relevant passage below the depth is missed, not left out


def test_questions_with_one_passage_are_tested_though_they_teach_nothing(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    """They were lost before the teacher ranked them: with 15 such of 30 questions, figures were of 15."""
    with_single_passages(files["train.jsonl"])
    with_single_passages(files["test.jsonl"])
    script = train_distillation.DistillationArguments(
        teacher_model=str(files["tiny"]), rows=str(files["train.jsonl"]), test_rows=str(files["test.jsonl"])
    )
    train, evaluation, counts = script.prepare_data(tmp_path / "out")
    assert sorted(map(len, evaluation["test"]["docs"])) == [1, 1, 1, 4, 4]
    assert {len(docs) for docs in train["docs"]} == {4}
    assert counts["test"]["queries"] == 5


def test_another_process_leaves_the_run_of_the_model_where_candidates_come_as_a_table(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote the table's scores over those of the model."""
    output = tmp_path / "out"
    script = train_distillation.DistillationArguments(
        teacher_model=str(files["tiny"]),
        run=str(files["train.tsv"]),
        rows=str(files["train.jsonl"]),
        test_rows=str(files["test.jsonl"]),
    )
    script.prepare_data(output)
    before = (output / "train.teacher.run").read_text()
    assert {line.split(" ")[5] for line in before.splitlines()} == {"tiny"}
    monkeypatch.setattr(teacher.PartialState, "is_main_process", False)
    script.prepare_data(output)
    assert (output / "train.teacher.run").read_text() == before


def test_without_judgments_the_teacher_chooses_the_checkpoint_and_the_card_says_so(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    parts = tmp_path / "parts"
    for name in ("train", "test"):
        teacher.save(parts / f"{name}.run", teacher.run_text(teacher.read_table(files[f"{name}.tsv"], None)))
    given = as_trec(files, parts).replace(f"--qrels {parts}/train.qrels ", "")
    assert run(files, tmp_path / "out", f"--run {parts}/train.run --test_run {parts}/test.run {given}") == 0
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


def passages(query_id: Any, ids: Any, texts: list[Any], labels: list[Any], query: Any = "why") -> str:
    own = {"passage_text": texts, "is_selected": labels}
    return json.dumps({"query_id": query_id, "query": query, "passage_ids": ids, "passages": own}) + "\n"


def test_rows_of_one_question_are_put_together(tmp_path: Path) -> None:
    """The later one took the place of the earlier one, and judgments were of half the passages."""
    path = tmp_path / "rows.jsonl"
    rows = passages(7, ["a", "b"], ["A", "B"], [1, 0]) + passages(7, ["c", "a"], ["C", "A"], [None, 0])
    path.write_text(rows + passages(7, ["d", "d"], ["D", "D"], [1, 0]))
    found = teacher.read_rows(path)
    assert found.grades == {"7": {"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0}}
    assert found.corpus == {"a": "A", "b": "B", "c": "C", "d": "D"}


def test_passages_and_questions_that_are_null_are_counted_by_the_readers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """AttributeError: 'NoneType' object has no attribute 'strip' it was."""
    path = tmp_path / "rows.jsonl"
    rows = passages("Q1", ["a", "b", "c"], ["A", None, "C"], [0, 0, 1])
    path.write_text(rows + passages("Q2", ["d"], ["D"], [1], query=None))
    script = train_distillation.DistillationArguments(rows=str(path))
    own = teacher.read_rows(path)
    run = teacher.save(tmp_path / "a.run", teacher.candidates_text(own.grades))
    judged = script.judged(run, teacher.save(tmp_path / "q", teacher.qrels_text(own.grades)), own.corpus, own.queries)
    assert judged["docs"] == [["A", "C"]]
    assert "1 corpus lines without text (first: corpus, row 2: 'b')" in caplog.text
    assert "1 queries lines without text (first: queries, row 2: 'Q2')" in caplog.text


GOOD = passages("Q1", ["a"], ["A"], [1])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (passages("Q1", ["b"], ["B"], [1], query="who"), "query 'Q1' was there before as 'why', and is 'who' here"),
        (passages("Q2", ["a"], ["B"], [1]), "passage 'a' was there before as 'A', and is 'B' here"),
        (passages(None, ["b"], ["B"], [1]), "there is no 'query_id'"),
        (passages("Q2", None, ["B"], [1]), "there is no 'passage_ids'"),
        (passages("Q2", "b", ["B"], [1]), "passage_ids must be a list"),
        (passages("Q2", ["b", "c"], ["B"], [1]), "2 passage_ids for 1 passages"),
        (passages("Q 2", ["b"], ["B"], [1]), "the identifier 'Q 2' is empty or has spaces"),
        (passages("Q2", [""], ["B"], [1]), "the identifier '' is empty or has spaces"),
        ("3\n", "expected an object, got int"),
    ],
)
def test_a_row_that_would_lose_another_or_break_a_run_is_named(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(GOOD + row)
    with pytest.raises(ValueError, match=f"rows.jsonl, line 2: {message}"):
        teacher.read_rows(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "q\td\ts\nQ1\tD1\t0.5\nQ1\tD1\t0.7\n",
            "line 3: the score of query 'Q1', document 'D1' was there before as '0.5'",
        ),
        ("q\td\ts\nQ1\tD 1\t0.5\n", "line 2: the identifier 'D 1' is empty or has spaces"),
        ("q\td\nQ1\tD1\n", "line 1: expected query, document and scores, got 2 columns"),
    ],
)
def test_a_table_that_would_lose_a_score_or_has_none_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "scores.tsv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"scores.tsv, {message}"):
        teacher.read_table(path, None)


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
