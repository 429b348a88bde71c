"""Plain, gzip and bzip2 files → whole lines with their numbers and a progress bar; a file cut short is a fault."""

from __future__ import annotations

import bz2
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets.utils import tqdm

from st_listwise.data.tally import Tally

#: Bytes of text that are worked on at a time.
BLOCK = 1 << 23
BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")  #: with a block, or at the end of nothing


def blocks(path: str | os.PathLike[str], tally: Tally) -> Iterator[tuple[int, bytes]]:
    """Whole lines, some megabytes at a time, each with the number of its first line, from 1.

    Gzip and bzip2 are told by their first bytes. Of a compressed file that breaks off, all whole lines are given.

    Raises:
        ValueError: there is no such file; in strict mode, it breaks off.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{path!r:.60} is {type(path).__name__}, expected the path of one file.")
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file.")
    with path.open("rb") as raw, tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=path.name) as bar:
        file = _unpacked(raw)
        number, rest = 1, b""
        ended = False
        while not ended:
            read, broken = _read(file)
            bar.update(raw.tell() - bar.n)
            ended = not read or broken is not None
            chunk = rest + read
            end = len(chunk) if ended and not broken else chunk.rfind(b"\n") + 1
            block, rest = chunk[:end], chunk[end:]
            if block:
                yield number, block.removeprefix(BOM) if number == 1 else block
            number += block.count(b"\n")
    if broken:
        tally.fault("files cut short", f"{path} breaks off in line {number} ({broken}): get it again")


def _unpacked(raw: Any) -> Any:
    begin = raw.read(10)
    raw.seek(0)
    if begin.startswith(GZIP):
        return gzip.GzipFile(fileobj=raw)
    return bz2.BZ2File(raw) if BZIP2.match(begin) else raw


def _read(file: Any) -> tuple[bytes, Exception | None]:
    """A block, shorter only at the end of the file, or where it breaks off and why."""
    pieces: list[bytes] = []
    try:
        while sum(map(len, pieces)) < BLOCK and (piece := file.read1(BLOCK)):
            pieces.append(piece)
    except (EOFError, OSError, zlib.error) as error:
        return b"".join(pieces), error
    return b"".join(pieces), None


def numbered_lines(path: str | os.PathLike[str], tally: Tally) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers from 1. Bytes that are not UTF-8 are replaced, and are a fault."""
    for first, block in blocks(path, tally):
        for number, line in enumerate(block.split(b"\n"), first):
            if line.strip():
                yield number, _decoded(line, path, number, tally)


def _decoded(line: bytes, path: str | os.PathLike[str], number: int, tally: Tally) -> str:
    try:
        return line.decode().rstrip("\r")
    except UnicodeDecodeError as error:
        tally.fault("lines that are not UTF-8", f"{path}, line {number}: {error}")
        return line.decode(errors="replace").rstrip("\r")


def excerpt(line: str) -> str:
    """The beginning of a line, quoted."""
    return repr(line.strip()[:60])
