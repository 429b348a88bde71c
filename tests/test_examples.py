"""What all scripts of the examples share: doctests, help, and faults on the command line that are one line."""

from __future__ import annotations

import argparse
import doctest
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1] / "examples"
sys.path[:0] = [str(ROOT / folder) for folder in ("ms_marco", "trec", "distillation", "setrank")]

import claims  # noqa: E402
import compare_text  # noqa: E402
import options  # noqa: E402
import train_distillation  # noqa: E402
import train_letor  # noqa: E402
import train_listwise  # noqa: E402
import train_text  # noqa: E402
import train_trec  # noqa: E402

WITH_DOCTESTS = sorted(path.stem for path in ROOT.glob("*/*.py") if ">>> " in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", WITH_DOCTESTS)
def test_what_docstrings_show_is_so(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0
    assert found.attempted > 0


def of_a_run(module: Any, script: Any) -> Callable[[list[str]], int]:
    return lambda argv: train_listwise.main(argv, script, module.__doc__)


SCRIPTS: dict[Any, Callable[[list[str]], int]] = {
    train_listwise: train_listwise.main,
    train_text: of_a_run(train_text, train_text.SetRankArguments),
    train_trec: of_a_run(train_trec, train_trec.TrecArguments),
    train_distillation: of_a_run(train_distillation, train_distillation.DistillationArguments),
    train_letor: train_letor.main,
    claims: claims.main,
    compare_text: compare_text.main,
}
#: What they cannot do without.
NEEDED = {
    train_trec: "--run r --qrels q --corpus c --queries q",
    claims: "--train t --test t --ranking_feature 1",
    compare_text: "--train t --test t",
}


def test_help_keeps_its_lines_and_no_two_scripts_write_into_one_folder_unless_told_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set model, started from the pointwise one in output/ms_marco, took its place."""
    monkeypatch.setenv("COLUMNS", "300")
    folders = {}
    for script, main in SCRIPTS.items():
        with pytest.raises(SystemExit) as stop:
            main(["--help"])
        assert stop.value.code == 0
        text = capsys.readouterr().out
        assert script.__doc__.strip() in text
        assert "(default: None)" not in text
        (folders[script],) = re.findall(r"where everything goes \(default: (\S+)\)", text)
    assert folders[train_text] == "output/setrank_text"
    assert len(set(folders.values())) == len(SCRIPTS)


def test_each_option_of_the_comparisons_says_what_it_is() -> None:
    for script in (claims, compare_text):
        silent = [action.dest for action in script.build_parser()._actions if not action.help]
        assert silent == []


def test_defaults_are_shown_where_there_are_any() -> None:
    parser = argparse.ArgumentParser(prog="a", description="one\n  two", formatter_class=options.HelpFormatter)
    parser.add_argument("--rate", type=float, default=0.5, help="a rate")
    parser.add_argument("--file", help="a file")
    text = parser.format_help()
    assert "one\n  two\n" in text
    assert re.search(r"--rate RATE +a rate \(default: 0\.5\)\n", text)
    assert re.search(r"--file FILE +a file\n", text)


@pytest.mark.parametrize("script", [*list(SCRIPTS)[:5]], ids=lambda script: script.__name__)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--lerning_rate 1", "error: --lerning_rate 1: not known. --help shows what is."),
        ("--eval_strategy no", "error: --load_best_model_at_end requires the save and eval strategy to match"),
    ],
)
def test_options_that_are_not_known_or_do_not_fit_are_no_traceback(
    script: Any, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert SCRIPTS[script]([*NEEDED.get(script, "").split(), *words.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("script", [train_letor, claims, compare_text], ids=lambda script: script.__name__)
def test_several_processes_are_refused_where_each_would_do_the_same(
    script: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them wrote final/, pictures and figures, each over the others'."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    try:
        status = SCRIPTS[script](NEEDED.get(script, "").split())
    except SystemExit as stop:
        status = stop.code  # type: ignore[assignment]
    assert status == 2
    assert "2 processes were started" in capsys.readouterr().err
