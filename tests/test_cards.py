"""Model cards are made from results files: what they state, the spread over queries, and what they do not know."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples" / "ms_marco"))

import card  # noqa: E402

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
