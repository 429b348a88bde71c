"""The figures of training_step.py as a picture: speed, share of the floor, peak memory.

python tests/benchmarks/chart.py output/bench/training_step.json
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

COLOURS = {"upstream": "tab:gray", "ours": "tab:blue", "ours, recompute": "tab:orange"}


def draw(results: dict[str, Any], path: Path) -> None:
    """A row of bars for each shape and loss; quartiles of the speed as whiskers."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    titles = list(results["results"])
    figure, axes = plt.subplots(1, 3, figsize=(13, 1.5 + 0.55 * len(titles)), sharey=True, layout="constrained")
    for place, title in enumerate(titles):
        for shift, row in enumerate(results["results"][title]["rows"]):
            y, colour = place + 0.26 * (shift - 1), COLOURS[row["variant"]]
            low, high = row["speed quartiles"]
            whiskers = [[max(0.0, row["speed"] - low)], [max(0.0, high - row["speed"])]]
            axes[0].barh(y, row["speed"], 0.24, color=colour, xerr=whiskers, error_kw={"elinewidth": 0.8})
            axes[1].barh(y, 100 * row["of floor"], 0.24, color=colour)
            axes[2].barh(y, row.get("peak MiB", 0), 0.24, color=colour)
    axes[0].set(yticks=range(len(titles)), yticklabels=titles, xlabel="speed (whiskers: quartiles)")
    axes[0].axvline(1, color="black", linewidth=0.6)
    axes[1].set(xlabel="% of the throughput without padding", xlim=(0, 110))
    axes[1].axvline(90, color="black", linewidth=0.6, linestyle=":")
    axes[2].set(xlabel="peak memory above the model, MiB")
    axes[0].invert_yaxis()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="x", alpha=0.3)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    figure.legend(handles, COLOURS, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"One training step, MiniLM-L6, {results['device']}")
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=130)
    plt.close(figure)
    os.replace(temporary, path)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    draw(json.loads(source.read_text()), source.with_suffix(".png"))
