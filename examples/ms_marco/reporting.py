"""What a run leaves behind: metrics.json and what it states, loss_curve.png, per_query.png, the printed table."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from st_listwise import ListwiseLoss

#: Measure, as ir-measures writes it → value of each query.
PerQuery = dict[str, list[float]]
#: Measures where none are named, the first chooses the best checkpoint; and their titles, others are their own.
COLUMNS = {"nDCG@10": "nDCG@10", "AP": "MAP", "RR@10": "MRR@10"}


def means(values: PerQuery) -> dict[str, float]:
    """Measure → mean over queries."""
    return {measure: sum(own) / len(own) for measure, own in values.items()}


def table(values: Mapping[str, Mapping[str, PerQuery]]) -> str:
    """Results as text: a block for each set of queries, a line for each way of ordering its documents.

    >>> print(table({"held-out": {"trained": {"nDCG@10": [0.625], "AP": [1.0, 0.0], "RR@10": [0.5]}}}))
    held-out       nDCG@10     MAP  MRR@10
    trained         0.6250  0.5000  0.5000
    """
    blocks = []
    for queries, rows in values.items():
        titles = {key: COLUMNS.get(key, key) for key in next(iter(rows.values()))}
        widths = {key: max(8, len(title) + 2) for key, title in titles.items()}
        lines = [f"{queries:14}" + "".join(f"{title:>{widths[key]}}" for key, title in titles.items())]
        for order, own in rows.items():
            lines.append(f"{order:14}" + "".join(f"{means(own)[key]:{widths[key]}.4f}" for key in titles))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def command_line(script: str, argv: Sequence[str] | None) -> str:
    """The command that was run, without the token of the Hub.

    Args:
        script: Path of the script from the root of the repository.
        argv: Its arguments. None: those of this process.

    >>> command_line("train.py", ["--seed", "1", "--hub_token", "hf_secret", "--hub-tok=hf_secret"])
    'python train.py --seed 1 --hub_token ... --hub-tok=...'
    """
    shown: list[str] = []
    hide = False  # what follows
    for word in sys.argv[1:] if argv is None else argv:
        option, equals, _ = word.partition("=")
        shown.append("..." if hide else f"{option}=..." if equals and _takes_token(option) else word)
        hide = not hide and not equals and _takes_token(option)
    return shlex.join(["python", script, *shown])


def _takes_token(option: str) -> bool:
    """Whether an option is --hub_token, as argparse reads it: with dashes inside, too, or shortened."""
    return len(option) > 2 and "--hub_token".startswith(option[:2] + option[2:].replace("-", "_"))


def versions(*more: str) -> dict[str, str]:
    """Of Python, of the packages that move figures, and of more."""
    packages = ("st-listwise", "sentence-transformers", "transformers", "torch", *more)
    return {"Python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}


def loss_facts(loss: ListwiseLoss) -> dict[str, Any]:
    """Name, full configuration and source of a loss."""
    return {"name": type(loss).__name__, "config": loss.get_config_dict(), "citation": loss.citation.strip()}


def write_json(path: Path, content: Any) -> None:
    """Write as JSON, a list of numbers on one line, under the rules of :func:`write_text`."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    write_text(path, re.sub(r"\[\n[\d\s.,eE+-]+\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write to a temporary name and move, so that the file is whole whenever it is there."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def plot_curve(path: Path, history: Sequence[Mapping[str, float]], metric: str | None, title: str) -> None:
    """Training loss over steps, and the evaluation metric on an axis of its own, as a PNG.

    Args:
        path: Where the picture goes.
        history: The trainer's log history.
        metric: Key of the evaluation metric in it. None: no second axis.
        title: Above the picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    losses = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
    scores = [(entry["step"], entry[metric]) for entry in history if metric and metric in entry]
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    if losses:
        axis.plot(*zip(*losses), color="tab:blue", marker="." if len(losses) < 40 else None, label="training loss")
    axis.set(xlabel="step", ylabel="training loss", title=title, xlim=(0, None), ylim=(0, None))
    axis.grid(alpha=0.3)
    if scores:
        right = axis.twinx()
        right.plot(*zip(*scores), color="tab:orange", marker="o", label=_metric_name(metric))
        right.set_ylabel(_metric_name(metric))
        right.spines["top"].set_visible(False)
    axis.spines["top"].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    _save(figure, path)


def plot_queries(path: Path, orders: Mapping[str, PerQuery], title: str) -> None:
    """What training changed for each query: the first measure after it minus that of the first order, as a PNG.

    Args:
        path: Where the picture goes.
        orders: Way of ordering → values of each query; the first is compared with "after".
        title: Above the picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    first = next(iter(orders))
    measure = next(iter(orders["after"]))
    gains = sorted((b - a for a, b in zip(orders[first][measure], orders["after"][measure])), reverse=True)
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    colours = ["tab:blue" if gain > 0 else "tab:orange" for gain in gains]
    axis.bar(range(1, len(gains) + 1), gains, width=1.0, color=colours)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.axhline(sum(gains) / len(gains), color="grey", linestyle="--", label=f"mean {sum(gains) / len(gains):+.4f}")
    axis.set(xlabel=f"queries: {better} better, {worse} worse, {len(gains) - better - worse} the same", title=title)
    axis.set(ylabel=f"{measure}, after - {first}", xlim=(0.5, len(gains) + 0.5))
    axis.grid(alpha=0.3, axis="y")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    temporary = path.with_name(path.stem + ".tmp.png")
    figure.savefig(temporary, dpi=150)
    plt.close(figure)
    os.replace(temporary, path)


def _metric_name(metric: str | None) -> str:
    return (metric or "").removeprefix("eval_").replace("_", " ").replace("ndcg", "nDCG")
