"""Peak memory and time of reading a large run file, which the script makes itself in a temporary folder.

``python tests/benchmarks/run_file.py`` makes 2 GB of lines sorted by query; ``--interleaved`` spreads each query over
the whole file. The reader runs in a process of its own, and its peak memory is all that this process ever held.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

DOCS = 200_000  #: in the corpus
LENGTH = 1_000  #: documents of a query
PIECE = 10  #: lines that stand together in an interleaved run
TEMPLATES = 50  #: rankings that queries take in turn


def main() -> None:
    """Make the files, read them in a process, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--interleaved", action="store_true")
    parser.add_argument("--num_proc", type=int, help="processes that make lists")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        read(Path(args.read), args.depth, args.num_proc)
        return
    with TemporaryDirectory() as folder:
        make(Path(folder), int(args.gigabytes * 1e9), args.interleaved)
        size = (Path(folder) / "run").stat().st_size
        print(f"run: {size / 1e9:.2f} GB, {'interleaved' if args.interleaved else 'sorted by query'}", flush=True)
        command = [sys.executable, __file__, "--read", folder, "--depth", str(args.depth)]
        command += ["--num_proc", str(args.num_proc)] if args.num_proc else []
        subprocess.run(command, check=True)


def make(folder: Path, size: int, interleaved: bool) -> None:
    """A run of ``size`` bytes, and qrels, corpus and queries for it."""
    generator = np.random.default_rng(12)
    words = [f"word{number}" for number in range(5000)]
    with (folder / "corpus").open("w") as file:
        for doc in range(DOCS):
            file.write(f"D{doc:07d}\t{' '.join(words[i] for i in generator.integers(0, 5000, 8))}\n")
    rankings = [generator.choice(DOCS, LENGTH, replace=False) for _ in range(TEMPLATES)]
    lines = [
        [f"@ Q0 D{doc:07d} {rank} {1000 - rank:.4f} bm25\n" for rank, doc in enumerate(ranking, 1)]
        for ranking in rankings
    ]
    pieces = [["".join(own[i : i + PIECE]).encode() for i in range(0, LENGTH, PIECE)] for own in lines]
    queries = size // sum(map(len, pieces[0])) + 1
    names = [f"q{query:06d}" for query in range(queries)]
    with (folder / "run").open("wb") as file:
        if interleaved:
            for place in range(LENGTH // PIECE):
                for query, name in enumerate(names):
                    file.write(pieces[query % TEMPLATES][place].replace(b"@", name.encode()))
        else:
            whole = [b"".join(own) for own in pieces]
            for query, name in enumerate(names):
                file.write(whole[query % TEMPLATES].replace(b"@", name.encode()))
    (folder / "queries").write_text("".join(f"{name}\twhat is {name}\n" for name in names))
    relevant = [f"{name} 0 D{rankings[query % TEMPLATES][query % 90]:07d} 1\n" for query, name in enumerate(names)]
    (folder / "qrels").write_text("".join(relevant))


def read(folder: Path, depth: int, num_proc: int | None) -> None:
    """Read once, and print peak memory and seconds."""
    from st_listwise.data import counts, read_trec

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    parts = [folder / name for name in ("run", "qrels", "corpus", "queries")]
    rows = read_trec(*parts, depth=depth, strict=True, num_proc=num_proc, cache_dir=folder / "cache")
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(counts(rows))
    print(f"{seconds:.0f} s; peak memory {peak / 1024:.0f} MiB, of which {before / 1024:.0f} MiB for imports")
    if num_proc:
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        print(f"largest of the {num_proc} other processes: {largest / 1024:.0f} MiB, with what they share")


if __name__ == "__main__":
    main()
