"""Model cards from results files (metrics.json): loss, data, figures with their spread over queries, command, limits.

python examples/ms_marco/card.py model_cards/results/*.json --about model_cards/about.json --output_dir model_cards
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mapper import describe
from reporting import COLUMNS, write_text

from st_listwise.evaluation import Comparison, compare

Results = Mapping[str, Any]
#: Ways of ordering, and what they are.
ORDERS = {
    "before": "is the model before training",
    "BM25": "orders the same candidates by words alone",
    "first stage": "is the order of the run",
    "teacher": "is the order of the teacher",
}
BINARY = "Relevant is what is above 0 and above the lowest label; grades above that do not count in the figures."


def main(argv: Sequence[str] | None = None) -> int:
    """A card for each results file, under its name; returns the exit status."""
    return write_cards(argv, _card_of, __doc__, "metrics.json of train_listwise.py, by any name")


def write_cards(
    argv: Sequence[str] | None, make: Callable[[Path, Mapping[str, Any]], str], description: str | None, results: str
) -> int:
    """Run a script that makes cards; nothing is written where one of them cannot be made.

    Args:
        argv: Its arguments. None: those of this process.
        make: From where results are and what is told about them to a card; ValueError: what is wrong with them.
        description: Of the script.
        results: What its results are.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help=results)
    parser.add_argument("--about", type=Path, help="JSON: name of the results → what no run can know")
    parser.add_argument("--output_dir", type=Path, required=True, help="where the cards go")
    args = parser.parse_args(argv)
    try:
        about = read(args.about) if args.about else {}
        cards = {name: make(path, about.get(name, {})) for name, path in _named(args.results).items()}
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    args.output_dir.mkdir(parents=True, exist_ok=True)
    for name, text in cards.items():
        write_text(args.output_dir / f"{name}.md", text)
        print(args.output_dir / f"{name}.md")
    return 0


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """Results by the name of their card: that of the folder, or of the file; ValueError where two have the same."""
    named: dict[str, Path] = {}
    for path in paths:
        name = path.absolute().name if path.is_dir() else path.stem
        if named.setdefault(name, path) != path:
            raise ValueError(
                f"{named[name]} and {path} would both make {name}.md: rename one of them, or copy it under a name of "
                "its own."
            )
    return named


def read(path: Path) -> dict[str, Any]:
    """A JSON object from a file; ValueError names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} could not be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object, got {type(content).__name__}.")
    return content


def _card_of(path: Path, about: Mapping[str, Any]) -> str:
    results = read(path)
    try:
        return card(results, about)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def card(results: Results, about: Mapping[str, Any]) -> str:
    """A whole card.

    Args:
        results: What a run wrote to metrics.json.
        about: What no run can know: ``title``, ``data`` (where it comes from, its license) and ``limits``, a list.

    Raises:
        ValueError: the results lack something that a card must state.
    """
    needed = ("command", "metrics", "loss", "model", "class", "dataset", "counts", "seed", "versions")
    if missing := [key for key in needed if key not in results]:
        raise ValueError(f"the results have no {', '.join(missing)}: a card must state them. Run the training again.")
    name = results["loss"]["name"]
    title = about.get("title") or f"{Path(results['model']).name} on {Path(results['dataset']).name}, {name}"
    text = f"# {title}\n\n{_introduction(results)}\n\n{sections(results, about)}"
    if citation := results["loss"].get("citation"):
        text += f"\n## Citation\n\n```bibtex\n{citation}\n```\n"
    return text


def complete_card(path: Path, results: Results) -> None:
    """Put what sentence-transformers' card of a trained model lacks into it, before its citations."""
    text = path.read_text(encoding="utf-8")
    head, citation, tail = text.partition("\n## Citation\n")
    write_text(path, f"{head.rstrip()}\n\n{sections(results, {})}{citation}{tail}")


def sections(results: Results, about: Mapping[str, Any]) -> str:
    """Facts, figures, command and limits, as Markdown."""
    facts = "\n".join(f"| {name} | {text} |" for name, text in _facts(results, about).items())
    limits = [*about.get("limits", []), *_known_limits(results)]
    return (
        f"## How it was trained\n\n| | |\n|---|---|\n{facts}\n\n"
        f"## Figures\n\n{_figures(results)}\n\n"
        f"## The command\n\n```bash\n{results['command']}\n```\n\n"
        f"## Limits\n\n" + "".join(f"- {limit}\n" for limit in limits)
    )


def _introduction(results: Results) -> str:
    encoder = "all-MiniLM-L6-v2 (`demo`)" if results["model"] == "demo" else f"`{results['model']}`"
    return (
        f"A `{results['class']}` that scores (query, document) pairs; larger is better, scores are raw logits.\n"
        f"Trained with `{results['loss']['name']}` of st-listwise from {encoder}."
    )


def _facts(results: Results, about: Mapping[str, Any]) -> dict[str, str]:
    counts = results["counts"]
    settings = [
        f"{results['epochs']:g} epoch{'s' * (results['epochs'] != 1)}" if "epochs" in results else "",
        f"{results['steps']:,} steps of {results['batch_size']} queries" if "steps" in results else "",
        f"learning rate {results['learning_rate']:g}" if "learning_rate" in results else "",
        f"seed {results['seed']}",
        results.get("precision", ""),
        f"the checkpoint with the best {results['best_by'].removeprefix('eval_')}" if results.get("best_by") else "",
    ]
    facts = {"Loss": loss_text(results["loss"]), "Data": about.get("data") or f"`{results['dataset']}`"}
    facts |= {f"Queries, {name}": _counted(own, counts) for name, own in counts.items()}
    facts["Settings"] = ", ".join(filter(None, settings))
    if results.get("seconds"):
        facts["Time"] = f"{results['seconds']:,.0f} s of training; {results.get('device', 'device not known')}"
    facts["Versions"] = versions_text(results["versions"])
    return facts


def loss_text(loss: Mapping[str, Any]) -> str:
    return f"`{loss['name']}`, {options_text(loss['config'])}"


def options_text(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in options.items())


def versions_text(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def _counted(own: Mapping[str, int], counts: Mapping[str, Mapping[str, int]]) -> str:
    if "kept" in own:
        return describe(own)
    kept = counts["train"]["kept"]
    return f"{own['queries']:,} of these {kept:,}, drawn by chance; {kept - own['queries']:,} are left to train on."


def _figures(results: Results) -> str:
    """Means of each set of queries and order, with intervals where the values of each query are known."""
    per_query = results.get("per_query", {})
    rows = [own for orders in results["metrics"].values() for own in orders.values()]
    keys = [key for key in rows[0] if all(key in own for own in rows)]
    titles = " | ".join(COLUMNS.get(key, key) for key in keys)
    lines = [f"| queries | order | {titles} |", "|---|---|" + "---|" * len(keys)]
    for name, orders in results["metrics"].items():
        for order, own in orders.items():
            values = per_query.get(name, {}).get(order, {})
            cells = " | ".join(_figure(own[key], values.get(key)) for key in keys)
            lines.append(f"| {name} | {order} | {cells} |")
    lines += ["", _legend(results["metrics"], per_query)]
    lines += [_comparison(name, orders, keys[0]) for name, orders in per_query.items()]
    return "\n".join(lines).rstrip()


def _figure(mean: float, values: Sequence[float] | None) -> str:
    return f"{mean:.4f}{interval(values or [])}"


def interval(values: Sequence[float]) -> str:
    """95% bootstrap interval of the mean over queries, in brackets; nothing where there are fewer than 2.

    >>> interval([0.5, 0.5, 0.5])
    ' (0.500–0.500)'
    """
    if len(values) < 2:
        return ""
    spread = compare(values, [0.0] * len(values))
    return f" ({spread.low:.3f}–{spread.high:.3f})"


def _legend(metrics: Mapping[str, Any], per_query: Mapping[str, Any]) -> str:
    named = {order for orders in metrics.values() for order in orders}
    rows = ", ".join(f'"{order}" {what}' for order, what in ORDERS.items() if order in named) + "."
    if not per_query:
        return rows + "\nThe spread over queries is not known: the results file holds means only."
    sizes = {name: len(next(iter(orders["after"].values()))) for name, orders in per_query.items()}
    counted = ", ".join(f"{size} {name}" for name, size in sizes.items())
    return rows + f"\nIn brackets: 95% bootstrap intervals over queries ({counted})."


def _comparison(name: str, orders: Mapping[str, Mapping[str, Sequence[float]]], measure: str) -> str:
    """A paired test against the first order."""
    first = next(iter(orders))
    if len(orders["after"][measure]) < 2:
        return ""
    found = compare(orders["after"][measure], orders[first][measure])
    return (
        f"\n{measure} after training against {first}, {name} queries: {difference(found)},\n"
        f"paired t-test p {p_value(found)}, better on {found.wins}, worse on {found.losses}."
    )


def difference(found: Comparison) -> str:
    return f"{found.difference:+.4f} ({found.low:+.3f} to {found.high:+.3f})"


def p_value(found: Comparison) -> str:
    return f"= {found.p_value:.4f}" if found.p_value >= 0.0001 else "< 0.0001"


def _known_limits(results: Results) -> list[str]:
    limits = [
        "Measured on the data above only: other languages, subjects and lengths were not.",
        *results.get("limits", [BINARY]),
        "One seed: another one moves the figures, and the intervals do not cover that.",
    ]
    if (results.get("best_by") or "").startswith("eval_held-out"):
        limits.append("The checkpoint was chosen on the held-out queries: their figures flatter it a little.")
    if results["class"] == "SetRankCrossEncoder":
        limits.append("A score depends on the whole list: scores of different lists cannot be compared.")
    return limits


if __name__ == "__main__":
    sys.exit(main())
