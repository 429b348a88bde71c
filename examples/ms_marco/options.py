"""Command lines of the scripts: options from dataclasses, help that can be read, and what is refused before a run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformers import HfArgumentParser


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the lines of the description, and shows the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def parse_options(
    argv: Sequence[str] | None,
    classes: Iterable[Any],
    description: str | None,
    defaults: Mapping[str, Any] | None = None,
) -> list[Any]:
    """An instance of each dataclass.

    Args:
        argv: Arguments of the command line. None: those of this process.
        classes: Dataclasses, of which each field is an option.
        description: What ``--help`` says first.
        defaults: Of options, where they differ from those of the dataclasses.

    Raises:
        ValueError: an option is not known, or options do not fit each other.
    """
    parser = HfArgumentParser(list(classes), description=description, formatter_class=HelpFormatter)
    parser.set_defaults(**(defaults or {}))
    *found, unknown = parser.parse_args_into_dataclasses(argv, return_remaining_strings=True)
    if unknown:
        raise ValueError(f"{' '.join(unknown)}: not known. --help shows what is.")
    return found


def refuse_processes() -> None:
    """ValueError where several processes were started: each would train the same, and write the same files."""
    if (number := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ValueError(
            f"{number} processes were started, but this script trains small networks in one: start it with python."
        )
