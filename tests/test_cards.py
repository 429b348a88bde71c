"""Model cards are made from results files: what they state, the spread over queries, and what they do not know."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples" / "ms_marco"), str(ROOT / "examples" / "setrank")]

import card  # noqa: E402
import comparison_card  # noqa: E402

COIN = [0.0, 1.0] * 200
MEANS = {"nDCG@10": 0.5, "AP": 0.25, "RR@10": 0.125}
RESULTS: dict[str, Any] = {
    "command": "python examples/ms_marco/train_listwise.py --dataset rows.jsonl",
    "metrics": {"test": {"BM25": {**MEANS, "nDCG@10": 0.0}, "before": MEANS, "after": MEANS}},
    "loss": {"name": "LambdaLoss", "config": {"k": 3, "mu": 10.0, "recompute": False}, "citation": "@x{y}"},
    "model": "encoders/tiny",
    "class": "SetRankCrossEncoder",
    "dataset": "rows.jsonl",
    "counts": {
        "train": {"queries": 90, "kept": 80, "documents": 800, "no positive": 10},
        "held-out": {"queries": 8},
    },
    "seed": 12,
    "best_by": "eval_held-out_nDCG@10",
    "versions": {"st-listwise": "0.1.0"},
    "per_query": {
        "test": {
            "BM25": {"nDCG@10": [0.0] * 400, "AP": COIN, "RR@10": COIN},
            "before": {"nDCG@10": COIN, "AP": COIN, "RR@10": COIN},
            "after": {"nDCG@10": COIN, "AP": COIN, "RR@10": COIN},
        }
    },
}


@pytest.mark.parametrize("path", sorted((ROOT / "model_cards" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_the_cards_in_the_repository_are_those_that_the_script_makes(path: Path) -> None:
    """By ``make cards``, after a change of the script or of a results file."""
    about = card.read(ROOT / "model_cards" / "about.json")
    made = card.card(card.read(path), about[path.stem])
    assert made == (ROOT / "model_cards" / f"{path.stem}.md").read_text(encoding="utf-8")


FOLDERS = sorted(path for path in (ROOT / "model_cards" / "results").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_the_cards_of_comparisons_are_those_that_the_script_makes(folder: Path) -> None:
    about = card.read(ROOT / "model_cards" / "about.json")
    made = comparison_card.folder_card(folder, about[folder.name])
    assert made == (ROOT / "model_cards" / f"{folder.name}.md").read_text(encoding="utf-8")


def test_no_card_is_written_by_hand() -> None:
    results = {path.stem for path in (ROOT / "model_cards" / "results").iterdir()}
    assert {path.stem for path in (ROOT / "model_cards").glob("*.md")} == results


def test_a_card_states_what_was_trained_on_what_and_how_to_get_it_again() -> None:
    text = card.card(RESULTS, {"title": "A title", "data": "Rows of mine", "limits": ["Not for sale."]})
    assert text.startswith("# A title\n")
    for part in (
        "| Loss | `LambdaLoss`, k=3, mu=10.0, recompute=false |",
        "| Data | Rows of mine |",
        "| Queries, train | 80 of 90 queries kept, with 800 documents; dropped: 10 no positive. |",
        "| Queries, held-out | 8 of these 80, drawn by chance; 72 are left to train on. |",
        "```bash\npython examples/ms_marco/train_listwise.py --dataset rows.jsonl\n```",
        "- Not for sale.\n",
        "chosen on the held-out queries",
        "scores of different lists cannot be compared",
        "| Versions | st-listwise 0.1.0 |",
        "```bibtex\n@x{y}\n```",
    ):
        assert part in text


def test_the_spread_is_that_of_the_queries() -> None:
    """400 queries, half of them 1: the mean has a standard error of .025, and 95% lie within 1.96 of it."""
    text = card.card(RESULTS, {})
    (row,) = re.findall(r"^\| test \| after \| 0.5000 \(([\d.]+)–([\d.]+)\) \|", text, re.MULTILINE)
    assert [float(end) for end in row] == pytest.approx([0.451, 0.549], abs=0.004)
    assert "| test | BM25 | 0.0000 (0.000–0.000) |" in text
    assert "(400 test)" in text
    assert "against BM25, test queries: +0.5000" in text
    assert "p < 0.0001, better on 200, worse on 0." in text


def test_without_values_of_each_query_the_card_says_that_the_spread_is_not_known() -> None:
    text = card.card({key: value for key, value in RESULTS.items() if key != "per_query"}, {})
    assert "| test | after | 0.5000 | 0.2500 | 0.1250 |" in text
    assert "The spread over queries is not known" in text
    assert "–" not in text
    assert "against BM25" not in text


def test_a_single_query_has_no_spread() -> None:
    results = copy.deepcopy(RESULTS)
    for own in results["per_query"]["test"].values():
        own.update({measure: [0.5] for measure in own})
    text = card.card(results, {})
    assert "| test | after | 0.5000 | 0.2500 | 0.1250 |" in text
    assert "(1 test)" in text


def test_a_trained_models_card_is_completed_before_its_citations(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("---\ntags: []\n---\n# Model\n\ntext\n\n## Citation\n\n@z\n", encoding="utf-8")
    card.complete_card(path, RESULTS)
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert headings == ["Model", "How it was trained", "Figures", "The command", "Limits", "Citation"]
    assert text.startswith("---\ntags: []\n---\n# Model\n\ntext\n\n## How")
    assert text.endswith("\n## Citation\n\n@z\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["README.md"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"command": "x"}', "run.json: the results have no metrics, loss"),
        ("[1]", "run.json: expected an object, got list"),
        ("{", "run.json could not be read"),
    ],
)
def test_a_results_file_that_says_too_little_makes_no_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    (tmp_path / "run.json").write_text(content)
    (tmp_path / "good.json").write_text(json.dumps(RESULTS))
    words = [str(tmp_path / "good.json"), str(tmp_path / "run.json"), "--output_dir", str(tmp_path / "cards")]
    assert card.main(words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "cards").exists()
    assert card.main([words[0], *words[2:]]) == 0
    assert (
        (tmp_path / "cards" / "good.md").read_text(encoding="utf-8").startswith("# tiny on rows.jsonl, LambdaLoss\n")
    )


def test_of_two_results_of_one_name_neither_card_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each run writes metrics.json, and the card of the last one took the place of the others."""
    paths = [tmp_path / run / "metrics.json" for run in ("run0", "run1")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(json.dumps(RESULTS))
    output = ["--output_dir", str(tmp_path / "cards")]
    assert card.main([*map(str, paths), *output]) == 2
    assert f"{paths[0]} and {paths[1]} would both make metrics.md: rename one" in capsys.readouterr().err
    assert not (tmp_path / "cards").exists()
    assert card.main([str(paths[0]), str(paths[0]), *output]) == 0  # one file twice is one


def drawn(seeds: int, mean: float) -> dict[str, list[float]]:
    generator = np.random.default_rng(int(1000 * mean))
    return {str(seed): generator.normal(mean, 0.2, size=100).round(6).tolist() for seed in range(seeds)}


SET = {"network": "Set: In → SetRank", "layers": 2, "dropout": 0.1, "weights": 1234}
COMPARISON: dict[str, Any] = {
    "commands": ["python examples/setrank/claims.py --train a.txt"],
    "settings": {"train": "a.txt", "test": "b.txt", "epochs": 15},
    "of each query": {
        "nDCG@10": {
            "MSAB": drawn(3, 0.5),
            "MSAB, as ranked": drawn(3, 0.51),
            "MSAB, shuffled": drawn(3, 0.52),
            "deep": drawn(2, 0.6),
            "LambdaMART": drawn(3, 0.55),
        }
    },
    "facts": {
        "counts": {
            "train": {"queries": 9, "kept": 8, "documents": 80, "one label": 1},
            "test": {"queries": 100, "kept": 100, "documents": 900, "no positive": 0},
        },
        "loss": {"name": "AttentionRankLoss", "config": {"recompute": False}, "citation": "@loss{a}"},
        "paper": "@paper{b}",
        "arms": {"MSAB": SET, "deep": {**SET, "layers": 6, "weights": 99}, "LambdaMART": {"network": "trees"}},
        "precision": "float32",
        "compared": [["MSAB", "deep"], ["MSAB, shuffled", "MSAB"], ["MSAB", "not measured"]],
        "noise": {"as ranked": 0.0, "shuffled": 1e6},
        "versions": {"st-listwise": "0.1.0"},
    },
}


def cells(text: str, start: str) -> list[str]:
    """Those of the first line of a table that begins so."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_comparison_states_what_was_trained_on_what_and_where_arms_differ() -> None:
    text = comparison_card.section(COMPARISON, {"title": "Rows", "data": "Rows of mine", "prepare": ["make rows"]})
    assert text.startswith("## Rows\n")
    for part in (
        "| Data | Rows of mine |",
        "| Queries, train | 8 of 9 queries kept, with 80 documents; dropped: 1 one label. |",
        "| Queries, test | 100 of 100 queries kept, with 900 documents. |",
        "| Loss | `AttentionRankLoss`, recompute=false |",
        "| Network | Set: In → SetRank, layers=2, dropout=0.1 |",
        "| Settings | epochs=15 |",
        "| Seeds | 0, 1, 2; deep: 0, 1 |",
        "| Versions | st-listwise 0.1.0 |",
        "```bash\nmake rows\npython examples/setrank/claims.py --train a.txt\n```",
    ):
        assert part in text
    assert cells(text, "MSAB")[1:3] == ["", "1,234"]
    assert cells(text, "deep")[1:3] == ["layers=6", "99"]
    assert cells(text, "LambdaMART")[1:3] == ["trees", ""]


def test_figures_of_a_comparison_are_spread_over_seeds_and_over_queries() -> None:
    figures = COMPARISON["of each query"]["nDCG@10"]
    text = comparison_card.section(COMPARISON, {"title": "Rows"})
    for arm in ("deep", "LambdaMART"):
        values = np.array(list(figures[arm].values()))
        found = re.fullmatch(r"([\d.]+) ± ([\d.]+) \(([\d.]+)–([\d.]+)\)", cells(text, arm)[3])
        assert found
        mean, deviation, low, high = map(float, found.groups())
        assert mean == pytest.approx(values.sum() / values.size, abs=5e-5)
        assert deviation == pytest.approx(stats.tstd(values.mean(1)), abs=5e-5)
        ends = stats.norm.interval(0.95, values.mean(), stats.sem(values.mean(0)))
        assert [low, high] == pytest.approx(ends, abs=0.003)
    assert "over the 100 queries" in text


def test_noisy_orders_have_a_table_of_their_own() -> None:
    text = comparison_card.section(COMPARISON, {"title": "Rows"})
    means = [
        np.mean([*COMPARISON["of each query"]["nDCG@10"][f"MSAB, {order}"].values()])
        for order in ("as ranked", "shuffled")
    ]
    table = text[text.index("| nDCG@10, initial order | as ranked | shuffled |") :]
    (row,) = re.findall(r"^\| MSAB \| ([\d.]+) ± [\d.]+ \| ([\d.]+) ± [\d.]+ \|$", table, re.MULTILINE)
    assert list(map(float, row)) == pytest.approx(means, abs=5e-5)
    assert not re.search(r"^\| MSAB, \w+ \|", text, re.MULTILINE)  # nor are they among the arms
    assert "standard deviation: 1e+06 (shuffled)." in text


def test_comparisons_are_tested_over_queries_with_the_seeds_that_both_arms_have() -> None:
    figures = COMPARISON["of each query"]["nDCG@10"]
    text = comparison_card.section(COMPARISON, {"title": "Rows"})
    one, other = (np.mean([figures[arm][seed] for seed in ("0", "1")], 0) for arm in ("MSAB", "deep"))
    _, measure, mean, p, better, worse, seeds = cells(text, "MSAB − deep")
    assert (measure, seeds) == ("nDCG@10", "2")
    difference, low, high = map(float, re.findall(r"[+-][\d.]+", mean))
    assert difference == pytest.approx(sum(one) / 100 - sum(other) / 100, abs=5e-5)
    ends = stats.norm.interval(0.95, np.mean(one - other), stats.sem(one - other))
    assert [low, high] == pytest.approx(ends, abs=0.004)
    expected = stats.ttest_1samp(one - other, 0).pvalue
    assert p == "< 0.0001" if expected < 1e-4 else float(p) == pytest.approx(expected, abs=5e-5)
    assert (int(better), int(worse)) == (sum(one > other), sum(one < other))
    _, _, _, p, *_ = cells(text, "MSAB, shuffled − MSAB")
    shuffled, given = (np.mean([*figures[arm].values()], 0) for arm in ("MSAB, shuffled", "MSAB"))
    assert float(p) == pytest.approx(stats.ttest_1samp(shuffled - given, 0).pvalue, abs=5e-5)
    assert "not measured" not in text


def test_a_folder_of_comparisons_makes_one_card_with_a_section_each(tmp_path: Path) -> None:
    folded = copy.deepcopy(COMPARISON)
    folded["settings"]["folds"] = 5
    del folded["facts"]["counts"]["test"]
    folder = tmp_path / "cards.in" / "mine"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps(folded))
    (folder / "b.json").write_text(json.dumps(COMPARISON))
    own = {
        "title": "T",
        "introduction": "I",
        "conclusions": ["C."],
        "limits": ["L."],
        "sections": {"b": {"title": "B"}},
    }
    (tmp_path / "about.json").write_text(json.dumps({"mine": own}))
    words = [str(folder), "--about", str(tmp_path / "about.json"), "--output_dir", str(tmp_path)]
    assert comparison_card.main(words) == 0
    text = (tmp_path / "mine.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert headings == ["T", "What follows", "B", "a", "Limits", "Citation"]
    assert "\n\nI\n\n## What follows\n\n- C.\n" in text
    assert "\n- L.\n" in text
    assert text.endswith("```bibtex\n@paper{b}\n\n@loss{a}\n```\n")
    assert "| Queries, test | the same, in 5 parts, each tested by models that the others trained. |" in text
    assert "| Data | `a.txt` |" in text


def without_facts(results: dict[str, Any]) -> None:
    del results["facts"]


def without_versions(results: dict[str, Any]) -> None:
    del results["facts"]["versions"]


def with_another_arm(results: dict[str, Any]) -> None:
    results["of each query"]["nDCG@10"]["wide"] = drawn(1, 0.5)


def with_a_query_less(results: dict[str, Any]) -> None:
    results["of each query"]["nDCG@10"]["deep"]["1"].pop()


def with_nan(results: dict[str, Any]) -> None:
    results["of each query"]["nDCG@10"]["deep"]["1"][0] = float("nan")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_facts, "there are no facts: a card states them. Run the command again; what is measured stays."),
        (without_versions, "the facts have no versions."),
        (with_another_arm, "the facts do not know the arm 'wide'."),
        (
            with_a_query_less,
            "numbers of queries differ: nDCG@10 of 'MSAB', seed 0: 100; nDCG@10 of 'deep', seed 1: 99",
        ),
        (with_nan, "nDCG@10 of 'deep', seed 1, is not finite everywhere."),
    ],
)
def test_a_comparison_that_says_too_little_makes_no_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any, message: str
) -> None:
    results = copy.deepcopy(COMPARISON)
    spoil(results)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "good.json").write_text(json.dumps(COMPARISON))
    (tmp_path / "mine" / "run.json").write_text(json.dumps(results))
    assert comparison_card.main([str(tmp_path / "mine"), "--output_dir", str(tmp_path / "cards")]) == 2
    assert f"{Path('mine') / 'run.json'}: {message}" in capsys.readouterr().err
    assert not (tmp_path / "cards").exists()


def test_a_folder_without_comparisons_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert comparison_card.main([str(tmp_path), "--output_dir", str(tmp_path)]) == 2
    assert f"{tmp_path} holds no results (.json)." in capsys.readouterr().err


def test_of_two_folders_of_one_name_neither_card_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """v1.0 and v1.1 are two names, though both are v1 to a file's suffix."""
    folders = [tmp_path / place for place in ("a/v1.0", "a/v1.1", "b/v1.1")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(COMPARISON))
    output = ["--output_dir", str(tmp_path / "cards")]
    assert comparison_card.main([*map(str, folders), *output]) == 2
    assert f"{folders[1]} and {folders[2]} would both make v1.1.md" in capsys.readouterr().err
    assert not (tmp_path / "cards").exists()
    monkeypatch.chdir(folders[0])
    assert comparison_card.main([".", str(folders[1]), *output]) == 0
    assert sorted(path.name for path in (tmp_path / "cards").iterdir()) == ["v1.0.md", "v1.1.md"]
