"""The MS MARCO example: rows to lists, local files and their faults, the script from end to end on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder
from tiny_models import tiny_bert
from transformers import HfArgumentParser

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "ms_marco"))

import demo
import mapper
import sources
import train_listwise
from reporting import command_line


def qna(query: Any, *passages: tuple[Any, Any]) -> dict[str, Any]:
    texts, selected = [text for text, _ in passages], [label for _, label in passages]
    return {"query": query, "passages": {"passage_text": texts, "is_selected": selected}}


ROW = qna("why", ("no", 0), ("so", 1), ("maybe", 0), ("yes", 1), ("never", 0))


def test_positives_come_first_and_equal_labels_keep_their_order() -> None:
    mapped = mapper.map_row(ROW)
    assert mapped["docs"] == ["so", "yes", "no", "maybe", "never"]
    assert mapped["labels"] == [1, 1, 0, 0, 0]
    assert mapped["dropped"] == ""


def test_all_forms_of_a_row_give_the_same_list() -> None:
    texts, selected = ROW["passages"]["passage_text"], ROW["passages"]["is_selected"]
    original = {
        "query": "why",
        "passages": [{"passage_text": t, "is_selected": s, "url": ""} for t, s in zip(texts, selected)],
    }
    lists = {"query": "why", "docs": texts, "labels": selected}
    assert mapper.map_row(original) == mapper.map_row(lists) == mapper.map_row(ROW)


@pytest.mark.parametrize(
    ("max_docs", "docs"),
    [(4, ["so", "yes", "no", "maybe"]), (2, ["so", "no"]), (5, ["so", "yes", "no", "maybe", "never"])],
)
def test_truncation_never_leaves_a_list_of_one_label(max_docs: int, docs: list[str]) -> None:
    mapped = mapper.map_row(ROW, max_docs)
    assert mapped["docs"] == docs
    assert len(set(mapped["labels"])) == 2
    assert mapped["truncated"] == (max_docs < 5)


def test_max_docs_below_two_is_refused() -> None:
    with pytest.raises(ValueError, match="max_docs=1 must be at least 2"):
        mapper.map_row(ROW, 1)


@pytest.mark.parametrize(
    ("row", "dropped"),
    [
        (qna("why", ("no", 0), ("so", 0)), "no positive"),
        (qna("why", ("no", 1), ("so", 1)), "only positives"),
        (qna("why", ("so", 1), ("", 0), (None, 0)), "only positives"),
        (qna(None, ("so", 1), ("no", 0)), "no query"),
        (qna("why"), "no passages"),
        ({"query": "why", "docs": ["a", "b"], "labels": [0.5, 0.5]}, "one label"),
    ],
)
def test_rows_that_teach_nothing_are_dropped_with_a_reason(row: dict[str, Any], dropped: str) -> None:
    assert mapper.map_row(row)["dropped"] == dropped


def test_empty_repeated_and_unlabelled_passages_are_left_out_and_counted() -> None:
    row = qna("why", ("no", 0), ("no", 1), (None, 0), (" ", 0), ("so", None), ("never", 0))
    mapped = mapper.map_row(row)
    assert (mapped["docs"], mapped["labels"]) == (["no", "never"], [1, 0])
    assert (mapped["empty"], mapped["unlabelled"], mapped["duplicates"]) == (2, 1, 1)


def test_a_data_set_is_mapped_and_counted() -> None:
    lists, counts = mapper.map_dataset(Dataset.from_list([ROW, qna("q", ("a", 0), ("b", 0)), ROW]), max_docs=3)
    assert lists.column_names == ["query", "docs", "labels"]
    assert lists["docs"][0] == ["so", "yes", "no"]
    text = mapper.describe(counts)
    assert text == "2 of 3 queries kept, with 6 documents; dropped: 1 no positive; 2 lists truncated."


def test_real_wikiqa_rows_give_the_lists_that_their_source_counts(real_data: Path) -> None:
    lists, counts = mapper.map_dataset(sources.load_rows(str(real_data / "wikiqa" / "test.jsonl")))
    assert counts["queries"] == 633  # SOURCE.md: 633 questions, 243 with a positive
    assert counts["kept"] + counts.get("only positives", 0) == 243
    assert all(labels[0] == 1 and labels[-1] == 0 for labels in lists["labels"])


def test_original_ms_marco_and_chinese_rows_are_read(real_data: Path) -> None:
    for name in ("msmarco_small/qna_v1.1_sample.jsonl", "dureader_demo/dev.jsonl"):
        assert len(sources.load_rows(str(real_data / name))) > 0


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_local_files_are_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        Dataset.from_list([ROW, ROW]).to_parquet(str(path))
    else:
        path.write_text(json.dumps([ROW, ROW]) if suffix == ".json" else f"{json.dumps(ROW)}\n\n{json.dumps(ROW)}\n")
    assert [row["query"] for row in sources.load_rows(str(path))] == ["why", "why"]


GOOD = json.dumps(ROW)
BAD_FILES = [
    ("cut.jsonl", GOOD + "\n" + GOOD[:40], r"cut.jsonl, line 2: not valid JSON"),
    ("keys.jsonl", GOOD + '\n{"query": "q", "answer": "a"}', "keys.jsonl, line 2: there is neither .passages. nor"),
    ("query.jsonl", '{"passages": []}', 'query.jsonl, line 1: there is no "query"'),
    ("unequal.jsonl", '{"query": "q", "docs": ["a", "b"], "labels": [1]}', "line 1: 2 documents, but 1 labels"),
    ("text.jsonl", '{"query": "q", "docs": ["a"], "labels": ["high"]}', "line 1: the label of document 0 is 'high'"),
    ("list.jsonl", "[1, 2]", "line 1: expected an object"),
    ("cut.json", "[" + GOOD + ",\n", "cut.json, line 2: not valid JSON"),
    ("empty.jsonl", "", "holds no rows"),
    ("rows.csv", "a,b", "'.csv' is not known"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES, ids=[row[0] for row in BAD_FILES])
def test_a_malformed_file_names_its_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    output = tmp_path / "output"
    status = train_listwise.main(["--dataset", str(tmp_path / name), "--model", "demo", "--output_dir", str(output)])
    assert status == 2
    with pytest.raises(ValueError, match=message):
        sources.load_rows(str(tmp_path / name))
    assert "error: " in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--loss", "ADRMSE"], "Did you mean ADRMSELoss"),
        (["--loss", "listmle"], "Did you mean ListMLELoss"),
        (["--loss", "ListwiseLoss"], "--loss 'ListwiseLoss' is not known"),
        (["--loss_args", "{alpha: 2}"], "--loss_args '{alpha: 2}' is not valid JSON"),
        (["--loss_args", "[2]"], "must be a JSON object"),
        (["--dataset", "absent.jsonl"], "absent.jsonl is not there"),
        (["--push_to_hub"], "--push_to_hub needs --hub_model_id"),
        (["--create_pr"], "--create_pr is for --push_to_hub"),
        (["--max_docs", "1"], "max_docs=1"),
    ],
)
def test_mistakes_on_the_command_line_are_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([GOOD] * 20))
    base = ["--dataset", str(path), "--model", "demo", "--output_dir", str(tmp_path / "output")]
    assert train_listwise.main(base + arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "output").exists()


def rows_file(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_max_docs_cuts_no_list_that_figures_are_of(tmp_path: Path) -> None:
    """Held-out lists were cut as well, so that all figures were of easier lists."""
    file, short = rows_file(tmp_path / "rows.jsonl", *[ROW] * 20), ["so", "yes", "no"]
    script = train_listwise.ScriptArguments(dataset=file, max_docs=3)
    train, evaluation, counts = script.prepare_data(tmp_path)
    assert train["docs"] == [short] * 18
    assert evaluation["held-out"]["docs"] == [["so", "yes", "no", "maybe", "never"]] * 2
    assert counts["held-out"] == {"queries": 2}
    assert mapper.describe(counts["train"]) == (
        "20 of 20 queries kept, with 64 documents; 18 lists truncated."  # 18 of 3 documents, 2 of 5
    )
    script.eval_file = rows_file(tmp_path / "eval.jsonl", *[ROW] * 4)
    train, evaluation, counts = script.prepare_data(tmp_path)
    assert train["docs"] == [short] * 20
    assert set(map(len, evaluation["held-out"]["docs"])) == {5}
    assert (counts["train"]["documents"], counts["held-out"]["documents"]) == (60, 20)


def test_an_eval_file_leaves_all_lists_of_the_data_set_to_train_on(tmp_path: Path) -> None:
    other = qna("who", ("me", 1), ("you", 0))
    script = train_listwise.ScriptArguments(
        dataset=rows_file(tmp_path / "rows.jsonl", *[ROW] * 3),  # too few to hold any out
        eval_file=rows_file(tmp_path / "eval.jsonl", other),
        test_file=rows_file(tmp_path / "test.jsonl", other, ROW),
    )
    train, evaluation, counts = script.prepare_data(tmp_path)
    assert train["query"] == ["why"] * 3
    assert {name: list(lists["query"]) for name, lists in evaluation.items()} == {
        "held-out": ["who"],
        "test": ["who", "why"],
    }
    assert {name: own["kept"] for name, own in counts.items()} == {"train": 3, "held-out": 1, "test": 2}


@pytest.mark.parametrize("part", ["dataset", "eval_file", "test_file"])
def test_a_file_whose_lists_all_have_one_label_is_named_with_the_counts(tmp_path: Path, part: str) -> None:
    """With an --eval_file there was no check, and the trainer failed on an empty data set."""
    files = {"dataset": "train.jsonl", "eval_file": "eval.jsonl", "test_file": "test.jsonl"}
    paths = {name: rows_file(tmp_path / file, *[ROW] * 3) for name, file in files.items()}
    rows_file(tmp_path / files[part], qna("q", ("a", 0), ("b", 0)), qna("q", ("a", 1)))
    message = rf"{files[part]} leaves no list .*: 0 of 2 queries .* dropped: 1 no positive, 1 only positives"
    with pytest.raises(ValueError, match=message):
        train_listwise.ScriptArguments(**paths).prepare_data(tmp_path)


@pytest.mark.parametrize("dataset", ["demo", "rows.jsonl"])
def test_a_configuration_is_for_data_sets_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset: str
) -> None:
    rows_file(tmp_path / "rows.jsonl", ROW)
    monkeypatch.chdir(tmp_path)
    script = train_listwise.ScriptArguments(dataset=dataset, dataset_config="v2.1")
    with pytest.raises(ValueError, match=r"--dataset_config 'v2\.1' is for data sets on the Hub only"):
        script.prepare_data(tmp_path)


@pytest.mark.parametrize("by", ["accelerate", "argument"])
def test_fsdp_is_refused_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    args = train_listwise.TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True)
    if by == "accelerate":
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    else:
        monkeypatch.setattr(args, "fsdp", "full_shard")
    script = train_listwise.ScriptArguments(dataset="absent.jsonl")
    with pytest.raises(ValueError, match="keeps checkpoints, which sentence-transformers does not save from FSDP"):
        train_listwise.run(script, args, [])


def test_nano_beir_chooses_the_checkpoint_with_data_from_the_hub_or_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_listwise, "CrossEncoderNanoBEIREvaluator", lambda: "NanoBEIR")
    file = rows_file(tmp_path / "rows.jsonl", ROW)
    for dataset, wanted, guide in [
        ("owner/name", None, "NanoBEIR"),
        ("owner/name", False, None),
        (file, None, None),
        (file, True, "NanoBEIR"),
        ("demo", None, None),
        ("demo", True, "NanoBEIR"),
    ]:
        assert train_listwise.ScriptArguments(dataset=dataset, nano_beir=wanted).guide() == guide


def test_without_nano_beir_the_held_out_queries_choose_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable() -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(train_listwise, "CrossEncoderNanoBEIREvaluator", unreachable)
    with caplog.at_level("INFO", "train_listwise"):
        assert train_listwise.ScriptArguments(dataset="owner/name").guide() is None
    assert "NanoBEIR could not be reached: the best model is chosen on the held-out queries." in caplog.text
    with pytest.raises(ValueError, match=r"NanoBEIR could not be loaded \(ConnectionError: no network\)"):
        train_listwise.ScriptArguments(dataset="owner/name", nano_beir=True).guide()


def test_an_argument_that_the_loss_does_not_have_is_named_with_those_that_it_has() -> None:
    build = train_listwise.loss_builder("ADRMSELoss", '{"alhpa": 2}')
    with pytest.raises(ValueError, match="ADRMSELoss has no alhpa; it takes alpha, discount, normalize, "):
        build(tiny_bert())


def test_relevant_is_what_is_above_0_and_above_the_lowest_label() -> None:
    rows = [{"query": "q", "docs": ["a", "b"], "labels": labels} for labels in ([2.0, 1.0], [0.5, -1.0], [-1.0, -2.0])]
    evaluator = train_listwise.ScriptArguments().build_evaluator(Dataset.from_list(rows), "test")
    assert [list(row["labels"]) for row in evaluator.rows] == [[1, 0], [1, 0]]  # the third one has none: left out


def test_the_demo_is_the_same_each_time_and_holds_what_it_says() -> None:
    rows = demo.demo_rows(queries=20)
    assert rows == demo.demo_rows(queries=20)
    for row in rows:
        passages = row["passages"]
        assert sum(passages["is_selected"]) == 1
        assert len(set(passages["passage_text"])) == demo.PASSAGES
        assert len(row["query"].split()) >= 4


def test_bm25_by_hand() -> None:
    """Two documents, k1 1.2, b 0.75; "bear" stands in one of them: idf ln(1 + 1.5 / 1.5), lengths 2 and 4, mean 3."""
    scores = demo.lexical_scores([("bear", "bear den"), ("bear", "some other words here")])
    expected = 0.6931471805599453 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / 3))
    assert scores.tolist() == pytest.approx([expected, 0.0])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """A whole run on a tiny model, with a push to a hub that is not there."""
    folder = tmp_path_factory.mktemp("trained")
    words = ["bear", "paris", "light", "stone", "river"]
    rows = [
        qna(f"find {w}", (f"a {w} here", 1), ("nothing", 0), (f"not {v}", 0))
        for w in words
        for v in words
        for _ in "ab"
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tiny_bert().save_pretrained(str(folder / "tiny"))
    arguments = f"""--dataset {folder}/rows.jsonl --model {folder}/tiny --output_dir {folder}/output
        --loss ADRMSELoss
        --eval_queries 5 --max_steps 8 --use_cpu 1 --disable_tqdm 1 --learning_rate 0.003 --push_to_hub
        --hub_model_id owner/name --hub_token hf_secret --test_file {folder}/rows.jsonl""".split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        return train_listwise.main([*arguments, "--loss_args", '{"alpha": 2}']), folder / "output"


def test_a_run_leaves_model_card_curve_and_metrics_and_survives_a_failed_push(
    trained: tuple[int, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    status, output = trained
    assert status == 1  # the push failed
    model = CrossEncoder(str(output / "final"))
    assert isinstance(model.activation_fn, torch.nn.Identity)
    card = (output / "final" / "README.md").read_text(encoding="utf-8")
    assert "st_listwise.losses.approx_rank.ADRMSELoss" in card
    assert '"alpha": 2' in card
    assert "schlatt2025rankdistillm" in card
    assert (output / "loss_curve.png").read_bytes().startswith(b"\x89PNG")
    content = (output / "metrics.json").read_text(encoding="utf-8")
    metrics = json.loads(content)
    assert metrics["seed"] == 12
    assert metrics["steps"] == 8
    assert metrics["loss"]["config"]["alpha"] == 2
    assert set(metrics["metrics"]) == {"held-out", "test"}
    assert set(metrics["metrics"]["test"]) == {"BM25", "before", "after"}
    assert "hf_secret" not in content + card
    assert not list(output.glob("*.tmp*"))


@pytest.mark.parametrize("option", ["--hub_token", "--hub-token", "--hub_tok", "--hub-t"])
@pytest.mark.parametrize("glue", [" ", "="])
def test_no_spelling_of_the_token_that_the_parser_takes_comes_into_the_command(option: str, glue: str) -> None:
    """Dashes in place of underscores, and shortened names, were taken for the token and shown."""
    argv = f"--dataset demo --output_dir out {option}{glue}hf_secret --seed 3".split()
    parser = HfArgumentParser((train_listwise.ScriptArguments, train_listwise.TrainingArguments))
    _, args = parser.parse_args_into_dataclasses(argv)
    assert args.hub_token == "hf_secret"
    assert (
        command_line("train.py", argv) == f"python train.py --dataset demo --output_dir out {option}{glue}... --seed 3"
    )


def test_a_run_goes_on_from_its_last_checkpoint_and_has_logged_what_lists_do(
    trained: tuple[int, Path], tmp_path: Path
) -> None:
    _, output = trained
    args = train_listwise.TrainingArguments(output_dir=str(output), resume_from_checkpoint="last", use_cpu=True)
    assert train_listwise.checkpoint_to_resume(args) == str(output / "checkpoint-8")
    args.output_dir = str(tmp_path)
    assert train_listwise.checkpoint_to_resume(args) is None
    args.resume_from_checkpoint = "a folder"
    assert train_listwise.checkpoint_to_resume(args) == "a folder"
    state = json.loads((output / "checkpoint-8" / "trainer_state.json").read_text(encoding="utf-8"))
    assert [entry["lists_that_teach"] for entry in state["log_history"] if "lists_that_teach" in entry] == [1.0] * 8
