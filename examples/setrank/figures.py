"""Figures that the comparisons share: kept by arm and seed, nDCG@10, spread over seeds, paired tests over queries."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import ndcg_score

from st_listwise.evaluation import compare

sys.path.append(str(Path(__file__).resolve().parents[1] / "ms_marco"))

from reporting import write_json

Seeds = Mapping[str, Sequence[float]]  #: of each seed the values of all queries


class Measured:
    """Values of each query by measure, arm and seed, in a file; what a run finds there it does not measure again.

    Args:
        path: The file, ``{"commands": ..., "settings": ..., "of each query": {measure: {arm: {seed: values}}}}``.
        settings: What all its values have in common, beside arm and seed.
        command: The command that is run.

    Raises:
        ValueError: the file holds values of other settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], command: str) -> None:
        self.path = path
        self.content: dict[str, Any] = {"commands": [], "settings": dict(settings), "of each query": {}}
        if path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))
            found = self.content["settings"]
            if other := [name for name in {*settings, *found} if settings.get(name) != found.get(name)]:
                names = ", ".join(sorted(other))
                raise ValueError(f"{path} was measured with another {names}: give another --output_dir.")
        self.command = command

    def __contains__(self, arm_and_seed: tuple[str, int]) -> bool:
        arm, seed = arm_and_seed
        return any(str(seed) in self.arms(measure).get(arm, {}) for measure in self.content["of each query"])

    def add(self, seed: int, found: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        """Keep arm → measure → values of each query, and write the file."""
        for arm, measures in found.items():
            for measure, values in measures.items():
                own = self.content["of each query"].setdefault(measure, {}).setdefault(arm, {})
                own[str(seed)] = [round(float(value), 6) for value in values]
        if self.command not in self.content["commands"]:
            self.content["commands"].append(self.command)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.content)

    def arms(self, measure: str) -> dict[str, Seeds]:
        return self.content["of each query"].get(measure, {})

    def report(self, pairs: Sequence[tuple[str, str]]) -> str:
        """Mean and standard deviation over seeds, and paired tests over queries, of each measure."""
        lines: list[str] = []
        for measure in self.content["of each query"]:
            arms = self.arms(measure)
            lines += [f"{measure:10}{arm:34}{spread(seeds)}" for arm, seeds in arms.items()]
            lines += [f"{measure:10}{line}" for line in paired(arms, pairs)]
        return "\n".join(lines)


def measured_before(path: Path, parser: ArgumentParser, args: Namespace, command: str) -> Measured:
    """What earlier runs of a script have left; ends it where they had other settings than arms and seeds."""
    settings = {name: value for name, value in vars(args).items() if name not in ("arms", "seeds", "output_dir")}
    try:
        return Measured(path, settings, command)
    except ValueError as error:
        parser.error(str(error))


def ndcg(labels: Sequence[float] | np.ndarray, scores: np.ndarray) -> float:
    """nDCG@10 of one list with gain 2^label - 1, ties averaged; a list of one document is in order."""
    return float(ndcg_score([2.0 ** np.array(labels) - 1], [scores], k=10)) if len(labels) > 1 else 1.0


def spread(seeds: Seeds) -> str:
    """Mean and standard deviation over seeds.

    >>> spread({"0": [0.5, 0.75], "1": [0.75, 1.0]})
    '0.7500 ± 0.1768'
    """
    means = [np.mean(values) for values in seeds.values()]
    return f"{np.mean(means):.4f} ± {np.std(means, ddof=1) if len(means) > 1 else 0.0:.4f}"


def paired(arms: Mapping[str, Seeds], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """A line with a paired t-test over queries, each averaged over the seeds that both have, for each pair of arms."""
    lines = []
    for first, second in pairs:
        if shared := sorted(set(arms.get(first, ())) & set(arms.get(second, ()))):
            one, other = (np.mean([arms[arm][seed] for seed in shared], 0) for arm in (first, second))
            found = compare(one, other)
            lines.append(
                f"{first} - {second}: {found.difference:+.4f} (p = {found.p_value:.3f}, {len(one)} queries, "
                f"{len(shared)} seeds)"
            )
    return lines
