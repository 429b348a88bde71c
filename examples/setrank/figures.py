"""Figures that the comparisons share: kept by arm and seed with what they come from, nDCG@10, spread, paired tests."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sentence_transformers import CrossEncoder
from sentence_transformers.sentence_transformer.modules import Pooling
from sklearn.metrics import ndcg_score

from st_listwise import FeatureVectors
from st_listwise.evaluation import Comparison, compare
from st_listwise.modules import SetRank

sys.path.append(str(Path(__file__).resolve().parents[1] / "ms_marco"))

from options import refuse_processes
from reporting import command_line, versions, write_json

Seeds = Mapping[str, Sequence[float]]  #: of each seed the values of all queries


class Measured:
    """Values of each query by measure, arm and seed, in a file; what a run finds there it does not measure again.

    Args:
        path: The file, ``{"commands": ..., "settings": ..., "of each query": {measure: {arm: {seed: values}}}}``, with
            "facts" from :meth:`state`.
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
        self._write()

    def state(self, facts: Mapping[str, Any], measures: bool, packages: Sequence[str] = ()) -> None:
        """Write what the values come from, and the versions of packages: all of them, where values of several meet.

        Args:
            facts: What comparison_card.py states: ``counts``, ``loss``, ``arms`` (:func:`describe_arm`), ``compared``,
                ``precision``, and perhaps ``noise`` and ``paper``.
            measures: Whether values are to be added. Otherwise versions stay, if they are there.
            packages: More packages that move the values.
        """
        now = versions(*packages)
        known = {**now, **self.content.get("facts", {}).get("versions", {})}
        for name, version in now.items():
            if measures and version not in known[name].split(" and "):
                known[name] += f" and {version}"
        self.content["facts"] = {**facts, "versions": known}
        self._write()

    def _write(self) -> None:
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


def run_comparison(
    parser: ArgumentParser, run: Callable[[Namespace, str], int], script: str, argv: Sequence[str] | None
) -> int:
    """Run a comparison with what its command line says, and return the exit status; faults end it as the parser's do.

    Args:
        parser: Of the command line.
        run: Takes what was parsed, and the command.
        script: Path of the script from the root of the repository.
        argv: Its arguments. None: those of this process.
    """
    args = parser.parse_args(argv)
    try:
        refuse_processes()
        return run(args, command_line(script, argv))
    except ValueError as error:
        parser.error(str(error))


def measured_before(path: Path, args: Namespace, command: str) -> Measured:
    """What earlier runs of a script have left; ValueError where they had other settings, but for arms and seeds."""
    settings = {name: value for name, value in vars(args).items() if name not in ("arms", "seeds", "output_dir")}
    return Measured(path, settings, command)


def ndcg(labels: Sequence[float] | np.ndarray, scores: np.ndarray) -> float:
    """nDCG@10 of one list with gain 2^label - 1, ties averaged; a list of one document is in order."""
    return float(ndcg_score([2.0 ** np.array(labels) - 1], [scores], k=10)) if len(labels) > 1 else 1.0


def spread(seeds: Seeds) -> str:
    """Mean and standard deviation over seeds; of one seed the mean alone.

    >>> spread({"0": [0.5, 0.75], "1": [0.75, 1.0]}), spread({"0": [0.5, 0.75]})
    ('0.7500 ± 0.1768', '0.6250')
    """
    means = [np.mean(values) for values in seeds.values()]
    return f"{np.mean(means):.4f}" + (f" ± {np.std(means, ddof=1):.4f}" if len(means) > 1 else "")


class Paired(NamedTuple):
    """A paired test over queries, each averaged over the seeds that both arms have."""

    first: str
    second: str
    found: Comparison
    queries: int
    seeds: int


def paired_tests(arms: Mapping[str, Seeds], pairs: Sequence[Sequence[str]]) -> list[Paired]:
    """A test for each pair of arms that were both measured with a common seed."""
    found = []
    for first, second in pairs:
        if shared := sorted(set(arms.get(first, ())) & set(arms.get(second, ()))):
            one, other = (np.mean([arms[arm][seed] for seed in shared], 0) for arm in (first, second))
            found.append(Paired(first, second, compare(one, other), len(one), len(shared)))
    return found


def paired(arms: Mapping[str, Seeds], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each test."""
    return [
        f"{first} - {second}: {found.difference:+.4f} (p = {found.p_value:.3f}, {queries} queries, {seeds} seeds)"
        for first, second, found, queries, seeds in paired_tests(arms, pairs)
    ]


def describe_arm(model: CrossEncoder, **training: Any) -> dict[str, Any]:
    """Modules of a model, their options, how it is trained where that is its own, and its number of weights."""
    options: dict[str, Any] = {}
    for module in model:
        if isinstance(module, (FeatureVectors, Pooling, SetRank)):
            options |= module.get_config_dict()
    return {
        "network": f"{type(model).__name__}: {' → '.join(type(module).__name__ for module in model)}",
        **options,
        **training,
        "weights": sum(weights.numel() for weights in model.parameters()),
    }
