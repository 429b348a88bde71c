"""The SetRank examples from end to end, on rows that are written here, and the faults that they name."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import tiny_bert

from st_listwise import SetRankConfig, SetRankCrossEncoder
from st_listwise.modules import SetRank

ROOT = Path(__file__).parents[1] / "examples"
sys.path[:0] = [str(ROOT / "ms_marco"), str(ROOT / "setrank")]

import claims  # noqa: E402
import compare_text  # noqa: E402
import figures  # noqa: E402
import train_letor  # noqa: E402
import train_listwise  # noqa: E402
import train_text  # noqa: E402
from mapper import map_row  # noqa: E402


def letor(path: Path, queries: int, seed: int, noise: float = 0.0) -> Path:
    generator = np.random.default_rng(seed)
    lines = []
    for query in range(queries):
        for _ in range(int(generator.integers(5, 9))):
            x = generator.normal(size=3)
            label = int(x[0] + noise * generator.normal() > 0)
            lines.append(f"{label} qid:{query} 1:{x[0]:.3f} 2:{x[1]:.3f} 3:{x[2]:.3f} # a comment")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_numeric_documents_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = letor(tmp_path / "train.txt", 30, 0), letor(tmp_path / "test.txt", 10, 1)
    status = train_letor.main(
        f"""--train {train} --test {test} --num_train_epochs 8 --width 16 --layers 1 --output_dir {tmp_path}/out
        --per_device_train_batch_size 4 --learning_rate 1e-2 --ordinal absolute --ranking_features 1,3
        --longest_list 9 --disable_tqdm true --use_cpu true --hub_token hf_secret""".split()
    )
    assert status == 0
    assert "without context" in capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "metrics.json").read_text())["test nDCG@10"]
    assert "hf_secret" not in (tmp_path / "out" / "metrics.json").read_text()
    assert results["SetRank"] > max(results["untrained"], 0.9)
    assert (tmp_path / "out" / "loss_curve_SetRank.png").stat().st_size > 5000
    model = SetRankCrossEncoder(str(tmp_path / "out" / "final"))
    ranking = model.rank("q", [[-1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.1, 0.0, 0.0]])
    assert ranking[0]["corpus_id"] == 1


def test_the_made_data_needs_the_list() -> None:
    """The direction in which relevant documents lie is drawn anew for each query: no linear scorer can know it."""
    rows = train_letor.made_lists(50, seed=3)
    assert rows == train_letor.made_lists(50, seed=3)
    means = []
    for row in rows:
        docs, labels = np.asarray(row["docs"]), np.asarray(row["labels"])
        np.testing.assert_allclose(np.linalg.norm(docs[:, :-1], axis=1), 1)  # the length does not tell
        if (labels > 1).any():
            means.append(docs[labels > 1, :-1].mean(0))
    assert np.linalg.norm(np.mean(means, 0)) < 0.5 * np.mean([np.linalg.norm(mean) for mean in means])


@pytest.mark.parametrize("points", [0, 2])
@pytest.mark.parametrize("sampling", ["absolute", "relative"])
@pytest.mark.parametrize("scored", [False, True])
def test_the_baseline_without_context_lost_the_initial_ranking(points: int, sampling: Any, scored: bool) -> None:
    """Each document stood at position 0, so that the difference to SetRank was not that of the context alone."""
    shape: dict[str, Any] = {"heads": 2, "inducing_points": points, "identity_start": False, "dropout": 0.0}
    model = SetRank(8, SetRankConfig(**shape, ordinal=sampling, max_docs=3))  # no room for a random start
    plain = SetRank(8, SetRankConfig(**shape))
    plain.blocks.load_state_dict(model.blocks.state_dict())
    model.__class__ = train_letor.WithoutContext
    vectors, scores = torch.randn(6, 8), torch.tensor([[0.1], [0.3], [0.2], [7.0], [9.0], [8.0]])
    features = {"sentence_embedding": vectors, "list_sizes": [3, 3], **({"initial_scores": scores} if scored else {})}
    rows = model.ordinal.tables[0, [2, 0, 1, 2, 0, 1] if scored else [0, 1, 2, 0, 1, 2]]
    expected = plain({"sentence_embedding": vectors + rows, "list_sizes": [1] * 6})["set_embedding"]
    torch.testing.assert_close(model(features)["set_embedding"], expected)


@pytest.mark.parametrize("points", [0, 2])
def test_the_baseline_without_ordinal_embeddings_is_the_network_on_lists_of_one(points: int) -> None:
    """To the last bit, dropout included: figures that were measured with it hold."""
    model = SetRank(8, SetRankConfig(width=4, heads=2, inducing_points=points, identity_start=False, dropout=0.3))
    vectors, found = torch.randn(6, 8), []
    for kind, sizes in ((SetRank, [1] * 6), (train_letor.WithoutContext, [4, 2])):
        model.__class__ = kind
        torch.manual_seed(1)
        found.append(model({"sentence_embedding": vectors, "list_sizes": sizes})["set_embedding"])
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--train {bad} --test {good}", r"bad\.txt, line 2: there is no qid"),
        ("--train {good}", "needs a --test file"),
        ("--train {good} --test {wide}", r"wide\.txt, line 1: feature 7 is beyond num_features=3"),
        ("--train {good} --test {good} --loss ListMLE", "Did you mean ListMLELoss"),
        (
            "--train {good} --test {good} --ranking_features 9",
            r"ranking_columns=\[8\] must be a list of whole numbers between 0 and 2",
        ),
        ("--train {good} --test {good} --heads 5", "heads=5 must divide the width, 64"),
        ("--train {good} --test {good} --valid {none}", "None of the 2 valid lists has a label above 0"),
        ("--train {good} --test {none}", "None of the 2 test lists has a label above 0"),
    ],
)
def test_faults_are_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    files = {"good": letor(tmp_path / "good.txt", 12, 0), "bad": tmp_path / "bad.txt", "wide": tmp_path / "wide.txt"}
    files["bad"].write_text("1 qid:1 1:1\n1 1:1\n")
    files["wide"].write_text("1 qid:1 7:1\n")
    files["none"] = tmp_path / "none.txt"
    files["none"].write_text("0 qid:1 1:1\n0 qid:1 1:2\n0 qid:2 1:1\n")
    words = f"{arguments.format(**files)} --output_dir {tmp_path}/out --disable_tqdm true".split()
    assert train_letor.main(words) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_the_claims_are_measured_with_orders_that_matter_to_ordinal_embeddings_alone(tmp_path: Path) -> None:
    train, test = letor(tmp_path / "train.txt", 12, 0, 3.0), letor(tmp_path / "test.txt", 8, 1, 3.0)
    arms = ["MSAB", "MSAB, absolute", "without context"]
    options = f"--ranking_feature 1 --seeds 2 --epochs 10 --learning_rate 1e-2 --output_dir {tmp_path}/out".split()
    words = ["--train", str(train), "--test", str(test), *options]
    assert claims.main([*words, "--arms", *arms]) == 0
    file = tmp_path / "out" / "claims.json"
    facts = json.loads(file.read_text())["facts"]
    labels = [line.split()[:2] for line in test.read_text().splitlines()]  # label and query
    relevant = {query for label, query in labels if label == "1"}
    assert facts["counts"]["test"]["queries"] == 8
    assert facts["counts"]["test"]["kept"] == len(relevant)
    assert facts["counts"]["test"]["documents"] == sum(query in relevant for _, query in labels)
    assert {arm: own.get("ordinal") for arm, own in facts["arms"].items()} == {
        "MSAB": "none",
        "MSAB, absolute": "absolute",
        "without context": "none",
        "LambdaMART": None,
    }
    assert "lightgbm" in facts["versions"]
    per_query = {
        arm: [seeds["0"], seeds["1"]]
        for arm, seeds in json.loads(file.read_text())["of each query"]["nDCG@10"].items()
    }
    assert {*arms, "LambdaMART", "MSAB, shuffled", "MSAB, absolute, shuffled"} <= set(per_query)
    np.testing.assert_allclose(per_query["MSAB, shuffled"], per_query["MSAB"], atol=1e-6)
    assert np.abs(np.subtract(per_query["MSAB, absolute, shuffled"], per_query["MSAB, absolute"])).max() > 1e-3


def test_a_comparison_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = letor(tmp_path / "train.txt", 12, 0, 3.0), letor(tmp_path / "test.txt", 8, 1, 3.0)
    options = f"--ranking_feature 1 --epochs 1 --arms IMSAB --output_dir {tmp_path}/out"
    words = f"--train {train} --test {test} {options}".split()
    file = tmp_path / "out" / "claims.json"
    claims.main([*words, "--seeds", "1"])
    whole = json.loads(file.read_text())
    kept = whole["of each query"]["nDCG@10"]["IMSAB"]["0"]
    whole["of each query"]["nDCG@10"]["IMSAB"]["0"] = [2.0] * len(kept)  # would be measured anew if it were not found
    file.write_text(json.dumps(whole))
    claims.main([*words, "--seeds", "2"])
    found = json.loads(file.read_text())
    seeds = found["of each query"]["nDCG@10"]["IMSAB"]
    assert seeds["0"] == [2.0] * len(kept)
    assert 0 < max(seeds["1"]) <= 1
    assert [command.split("--seeds ")[1] for command in found["commands"]] == ["1", "2"]
    with pytest.raises(SystemExit):
        claims.main([*words, "--dropout", "0.1"])
    assert "claims.json was measured with another dropout: give another --output_dir." in capsys.readouterr().err


def test_paired_tests_are_over_the_seeds_that_both_arms_have() -> None:
    arms = {
        "a": {"1": [1.0, 2.0, 4.0], "2": [9.0, 9.0, 9.0]},
        "b": {"1": [0.0, 0.0, 1.0]},
        "c": {"3": [0.0, 0.0, 0.0]},
    }
    (line,) = figures.paired(arms, [("a", "b"), ("a", "c"), ("a", "missing")])
    # differences 1, 2, 3: t = 2 / (1 / sqrt(3)) = 3.4641, two-sided p with 2 degrees of freedom 0.0742
    assert line == "a - b: +2.0000 (p = 0.074, 3 queries, 1 seeds)"


LEFT_OUT = ("empty", "unlabelled", "duplicates", "truncated")
ROWS = [
    {
        "query": f"what is number {i}",
        "docs": [f"no {i}", "a far longer text", f"number {i} it is"],
        "labels": [0, 0, 1],
    }
    for i in range(12)
]


def test_a_text_model_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    encoder = tmp_path / "encoder"
    tiny_bert().save_pretrained(str(encoder))
    status = run_text(tmp_path, f"--model {encoder} --heads 4 --layers 1 --ordinal relative --longest_list 5")
    assert status == 0
    out = tmp_path / "out"
    assert {"final", "loss_curve.png", "metrics.json"} <= {path.name for path in out.iterdir()}
    assert json.loads((out / "metrics.json").read_text())["command"].startswith(
        "python examples/setrank/train_text.py"
    )
    assert len(SetRankCrossEncoder(str(out / "final")).rank("a", ["b", "c"])) == 2


def run_text(folder: Path, arguments: str) -> int:
    common = f"--dataset {folder}/rows.jsonl --output_dir {folder}/out --num_train_epochs 1 --use_cpu true"
    words = f"{common} --per_device_train_batch_size 4 --disable_tqdm true {arguments}".split()
    return train_listwise.main(words, train_text.SetRankArguments)


def test_texts_are_compared_in_one_stage_and_in_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    tiny_bert().save_pretrained(str(tmp_path / "encoder"))
    common = (
        f"--train {tmp_path}/rows.jsonl --folds 2 --model {tmp_path}/encoder --seeds 1 --epochs 1 --batch 4".split()
    )
    for stage, arms in ([], compare_text.ARMS[:3]), (["--two_stage", "--first_docs", "2"], compare_text.ARMS):
        out, given = tmp_path / f"out{len(stage)}", "order as given"
        assert compare_text.main([*common, *stage, "--output_dir", str(out), "--arms", *arms]) == 0
        assert "SetRank - without context" in capsys.readouterr().out
        values = json.loads((out / "compare_text.json").read_text())["of each query"]["MAP"]
        assert {arm: len(seeds["1"]) for arm, seeds in values.items()} == dict.fromkeys([*arms, given], len(ROWS))
        assert values[given]["1"] == [pytest.approx(1 / 3, abs=1e-6)] * len(
            ROWS
        )  # the right one is the third of three
    assert sorted(path.name for path in (tmp_path / "out3" / "first_stage").iterdir()) == ["0", "1"]
    facts = json.loads((out / "compare_text.json").read_text())["facts"]
    assert facts["counts"] == {"train": {**dict.fromkeys(LEFT_OUT, 0), "queries": 12, "kept": 12, "documents": 36}}
    assert facts["loss"]["name"] == "ListMLELoss"
    assert facts["precision"] == "bfloat16 autocast in the first stage, float32 after it"
    assert facts["arms"]["pointwise"]["weights"] == 32 + 1  # on vectors of width 32: a linear layer and its bias
    assert facts["arms"]["without context"]["network"].endswith("WithoutContext → Dense")
    shape = tiny_bert()[0].auto_model.config
    with_text = json.loads((tmp_path / "out0" / "compare_text.json").read_text())["facts"]["arms"]["pointwise"]
    assert with_text["network"] == "CrossEncoder: Transformer"
    assert with_text["weights"] > shape.vocab_size * shape.hidden_size


def refuse(*arguments: Any, **options: Any) -> None:
    raise AssertionError("Something is trained.")


def test_what_was_measured_before_facts_were_kept_gets_them_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first stage is no longer there: nothing starts from it."""
    train, test = letor(tmp_path / "train.txt", 12, 0, 3.0), letor(tmp_path / "test.txt", 8, 1, 3.0)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    tiny_bert().save_pretrained(str(tmp_path / "encoder"))
    common = f"--epochs 1 --output_dir {tmp_path}/out"
    runs = {
        "claims.json": (claims, f"--train {train} --test {test} --ranking_feature 1 --arms IMSAB --seeds 1 {common}"),
        "compare_text.json": (
            compare_text,
            f"--train {tmp_path}/rows.jsonl --folds 2 --model {tmp_path}/encoder --seeds 1 --two_stage {common}",
        ),
    }
    for script, words in runs.values():
        script.main(words.split())
    shutil.rmtree(tmp_path / "out" / "first_stage")
    for script in (claims, compare_text):
        monkeypatch.setattr(script, "CrossEncoderTrainer", refuse)
    monkeypatch.setattr(claims, "lambda_mart", refuse)
    for name, (script, words) in runs.items():
        file = tmp_path / "out" / name
        whole = json.loads(file.read_text())
        file.write_text(json.dumps({key: value for key, value in whole.items() if key != "facts"}))
        script.main(words.split())
        assert json.loads(file.read_text()) == whole


def test_versions_of_values_that_were_measured_at_different_times_are_all_stated(tmp_path: Path) -> None:
    measured = figures.Measured(tmp_path / "claims.json", {}, "python claims.py")
    measured.state({"counts": {}}, measures=True)
    torch_now = measured.content["facts"]["versions"]["torch"]
    measured.content["facts"]["versions"]["torch"] = "1.0"
    measured.state({"counts": {"train": 1}}, measures=False)  # only looked at: its values are as old as they were
    assert measured.content["facts"]["versions"]["torch"] == "1.0"
    for _ in range(2):
        measured.state({"counts": {"train": 1}}, measures=True)
        facts = json.loads((tmp_path / "claims.json").read_text())["facts"]
        assert facts["versions"]["torch"] == f"1.0 and {torch_now}"
        assert facts["counts"] == {"train": 1}


def test_freezing_and_the_head_learning_rate_reach_the_right_parameters(tmp_path: Path) -> None:
    encoder = tmp_path / "encoder"
    tiny_bert().save_pretrained(str(encoder))
    script = train_text.SetRankArguments(model=str(encoder), freeze_encoder=True, head_learning_rate=1e-2)
    model = script.build_model()
    trained = {name for name, part in model.named_parameters() if part.requires_grad}
    assert {name.split(".")[0] for name in trained} == {"2", "3"}
    (pattern,) = script.learning_rates()
    names = [f"model.{name}" for name, _ in model.named_parameters()]
    assert {name for name in names if re.search(pattern, name)} == {f"model.{name}" for name in trained}


def test_documents_keep_their_given_order_where_the_model_sees_it() -> None:
    """Sorted by label, the order in which documents are given would tell ordinal embeddings the answer."""
    row: dict[str, Any] = {"query": "q", "docs": ["a", "b", "c", "d"], "labels": [0, 2, 0, 1]}
    assert map_row(row)["docs"] == ["b", "d", "a", "c"]
    assert map_row(row, keep_order=True)["docs"] == ["a", "b", "c", "d"]
    assert map_row(row, max_docs=3, keep_order=True)["docs"] == ["a", "b", "d"]
    assert train_text.SetRankArguments.keep_order
