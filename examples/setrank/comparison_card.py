"""Model cards from what claims.py and compare_text.py measured: one from a folder, with a section from each file.

python examples/setrank/comparison_card.py results/*/ --about about.json --output_dir model_cards
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from figures import Seeds, paired_tests, spread

sys.path.append(str(Path(__file__).resolve().parents[1] / "ms_marco"))

from card import difference, interval, loss_text, options_text, p_value, read, versions_text, write_cards
from mapper import describe

Results = Mapping[str, Any]
PER_QUERY = "of each query"
#: Measures, and what they are.
MEASURES = {
    "nDCG@10": "nDCG@10 has gain 2^label - 1 and averages ties.",
    "MAP": "For MAP, every label above 0 is relevant.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """A card for each folder, under its name; returns the exit status."""
    return write_cards(argv, folder_card, __doc__, "folder of claims.json and compare_text.json files, by any name")


def folder_card(folder: Path, about: Mapping[str, Any]) -> str:
    """A card from all results files of a folder.

    Args:
        folder: Holds them; those that ``about`` names come first, in its order.
        about: What no run can know: ``title``, ``introduction``, ``conclusions`` and ``limits`` (lists), and of each
            file, by its name, under ``sections``: ``title``, ``data`` and ``prepare``, commands that make the data.

    Raises:
        ValueError: there are no files, or one of them lacks something that a card must state. It names the file.
    """
    sections = about.get("sections", {})
    places = {name: place for place, name in enumerate(sections)}
    paths = sorted(folder.glob("*.json"), key=lambda path: (places.get(path.stem, len(places)), path.stem))
    if not paths:
        raise ValueError(f"{folder} holds no results (.json).")
    files = {path: read(path) for path in paths}
    parts = []
    for path, results in files.items():
        try:
            parts.append(section(results, {"title": path.stem, **sections.get(path.stem, {})}))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    text = f"# {about.get('title', folder.name)}\n"
    if introduction := about.get("introduction"):
        text += f"\n{introduction}\n"
    text += _listed("What follows", about.get("conclusions", [])) + "".join(f"\n{part}" for part in parts)
    return (
        text + _listed("Limits", about.get("limits", [])) + _citations(results["facts"] for results in files.values())
    )


def section(results: Results, about: Mapping[str, Any]) -> str:
    """Facts, figures, tests and commands of one file, as Markdown.

    Raises:
        ValueError: the results lack something, or an arm was not measured on the same queries as the others.
    """
    check(results)
    facts = "\n".join(f"| {name} | {text} |" for name, text in _facts(results, about).items() if text)
    commands = "\n".join([*about.get("prepare", []), *results["commands"]])
    parts = [
        f"## {about['title']}",
        f"| | |\n|---|---|\n{facts}",
        _figures(results),
        _noise(results),
        _tests(results),
        f"```bash\n{commands}\n```\n",
    ]
    return "\n\n".join(filter(None, parts))


def check(results: Results) -> None:
    """ValueError unless everything is there that a card states."""
    if missing := [key for key in ("commands", "settings", PER_QUERY, "facts") if not results.get(key)]:
        raise ValueError(
            f"there are no {', '.join(missing)}: a card states them. Run the command again; what is measured stays."
        )
    needed = ("versions", "counts", "loss", "arms", "precision", "compared")
    if missing := [key for key in needed if key not in results["facts"]]:
        raise ValueError(f"the facts have no {', '.join(missing)}. Run the command again; what is measured stays.")
    sizes: dict[int, str] = {}
    for measure, arms in results[PER_QUERY].items():
        for arm, seeds in arms.items():
            if arm not in results["facts"]["arms"] and not _is_noisy(arm, results):
                raise ValueError(f"the facts do not know the arm {arm!r}. Run the command again.")
            for seed, values in seeds.items():
                sizes.setdefault(len(values), f"{measure} of {arm!r}, seed {seed}")
                if not np.isfinite(np.asarray(values, dtype=float)).all():
                    raise ValueError(f"{measure} of {arm!r}, seed {seed}, is not finite everywhere.")
    if len(sizes) > 1:
        raise ValueError("numbers of queries differ: " + "; ".join(f"{own}: {size}" for size, own in sizes.items()))


def _is_noisy(arm: str, results: Results) -> bool:
    return any(arm == f"{base}, {noise}" for base, noise in _noisy(results))


def _noisy(results: Results) -> Iterator[tuple[str, str]]:
    """Arms, and ways in which their initial order is disturbed."""
    facts = results["facts"]
    return ((arm, noise) for arm in facts["arms"] for noise in facts.get("noise", {}))


def _facts(results: Results, about: Mapping[str, Any]) -> dict[str, str]:
    stated, settings = results["facts"], results["settings"]
    queries = {name: describe(counts) for name, counts in stated["counts"].items()}
    if "test" not in queries:
        queries["test"] = f"the same, in {settings['folds']} parts, each tested by models that the others trained."
    facts = {"Data": about.get("data") or f"`{settings['train']}`"}
    facts |= {f"Queries, {name}": text for name, text in queries.items()}
    facts["Loss"] = loss_text(stated["loss"])
    facts["Network"] = _options(_shared(stated["arms"]))
    facts["Settings"] = options_text({key: value for key, value in settings.items() if key not in ("train", "test")})
    facts["Seeds"] = _seeds(results)
    facts["Precision"] = stated["precision"]
    facts["Versions"] = versions_text(stated["versions"])
    return facts


def _seeds(results: Results) -> str:
    """Those of most arms, and which arms have others."""
    arms = next(iter(results[PER_QUERY].values()))
    listed = {arm: ", ".join(sorted(seeds, key=int)) for arm, seeds in arms.items() if not _is_noisy(arm, results)}
    most = Counter(listed.values()).most_common(1)[0][0]
    return "; ".join([most, *(f"{arm}: {seeds}" for arm, seeds in listed.items() if seeds != most)])


def _shared(arms: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Options that several arms have, with the value of most of them."""
    shared: dict[str, Any] = {}
    for key in dict.fromkeys(key for own in arms.values() for key in own if key != "weights"):
        values = Counter(json.dumps(own[key]) for own in arms.values() if key in own)
        if values.total() > 1:
            shared[key] = json.loads(values.most_common(1)[0][0])
    return shared


def _options(options: Mapping[str, Any]) -> str:
    rest = options_text({key: value for key, value in options.items() if key not in ("network", "weights")})
    return ", ".join(filter(None, [options.get("network", ""), rest]))


def _figures(results: Results) -> str:
    """Of each arm what sets it apart, its number of weights, and its figures with their spread."""
    measures, arms = results[PER_QUERY], results["facts"]["arms"]
    shared = _shared(arms)
    lines = [
        f"| arm | where it differs | weights | {' | '.join(measures)} |",
        "|---|---|---|" + "---|" * len(measures),
    ]
    for arm in (arm for arm in next(iter(measures.values())) if not _is_noisy(arm, results)):
        own = {key: value for key, value in arms[arm].items() if key not in shared or shared[key] != value}
        weights = f"{own['weights']:,}" if "weights" in own else ""
        cells = " | ".join(_figure(measures[measure][arm]) for measure in measures)
        lines.append(f"| {arm} | {_options(own)} | {weights} | {cells} |")
    sizes = len(next(iter(next(iter(next(iter(measures.values())).values())).values())))
    legend = (
        f"Mean ± standard deviation over seeds; in brackets the 95% bootstrap interval over the {sizes} queries, each"
    )
    measured = " ".join(MEASURES[measure] for measure in measures if measure in MEASURES)
    return "\n".join([*lines, "", f"{legend}\naveraged over seeds. {measured}".rstrip()])


def _figure(seeds: Seeds) -> str:
    return spread(seeds) + interval(np.mean([*seeds.values()], 0).tolist())


def _noise(results: Results) -> str:
    """Figures where the initial order of the test lists is disturbed; nothing where none was."""
    noises = results["facts"].get("noise", {})
    blocks = []
    for measure, arms in results[PER_QUERY].items():
        bases = dict.fromkeys(base for base, noise in _noisy(results) if f"{base}, {noise}" in arms)
        if bases:
            lines = [f"| {measure}, initial order | {' | '.join(noises)} |", "|---|" + "---|" * len(noises)]
            for base in bases:
                found = (arms.get(f"{base}, {noise}") for noise in noises)
                lines.append(f"| {base} | {' | '.join(spread(seeds) if seeds else '' for seeds in found)} |")
            blocks.append("\n".join(lines))
    if not blocks:
        return ""
    scales = ", ".join(f"{scale:g} ({noise})" for noise, scale in noises.items() if scale)
    legend = "Normal noise is added to the ranks of the documents of test lists; its standard deviation: "
    return "\n\n".join([*blocks, f"{legend}{scales}."])


def _tests(results: Results) -> str:
    lines = [
        "| difference | measure | mean (95% interval) | p | better | worse | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for measure, arms in results[PER_QUERY].items():
        for first, second, found, _, seeds in paired_tests(arms, results["facts"]["compared"]):
            lines.append(
                f"| {first} − {second} | {measure} | {difference(found)} | {p_value(found).removeprefix('= ')} "
                f"| {found.wins} | {found.losses} | {seeds} |"
            )
    if len(lines) == 2:
        return ""
    legend = (
        "Paired t-tests over queries, each averaged over the seeds that both have; p is of each test alone, not\n"
        "corrected for their number. Better, worse: queries on which the first is above, below."
    )
    return "\n".join([*lines, "", legend])


def _listed(title: str, sentences: Sequence[str]) -> str:
    return f"\n## {title}\n\n" + "".join(f"- {sentence}\n" for sentence in sentences) if sentences else ""


def _citations(facts: Iterable[Mapping[str, Any]]) -> str:
    """Sources of the network and the losses, each once."""
    found = (source for own in facts for source in (own.get("paper"), own["loss"].get("citation")) if source)
    citations = "\n\n".join(dict.fromkeys(found))
    return f"\n## Citation\n\n```bibtex\n{citations}\n```\n" if citations else ""


if __name__ == "__main__":
    sys.exit(main())
