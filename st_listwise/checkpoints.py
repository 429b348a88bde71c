"""Which checkpoint of an interrupted run can be resumed."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from zipfile import is_zipfile

from safetensors import SafetensorError, safe_open

logger = logging.getLogger(__name__)

#: What the trainer writes last into a checkpoint.
STATE = "trainer_state.json"


def last_complete_checkpoint(folder: str | Path) -> str | None:
    """The newest checkpoint of a run that was written to its end.

    A run that is killed, or meets a full disk, while it saves leaves a folder ``checkpoint-N`` that ends in an error
    when it is resumed; the trainer's own ``resume_from_checkpoint=True`` chooses just that. Folders that are passed
    over are logged with the reason.

    Args:
        folder: The trainer's ``output_dir``. It need not exist.

    Returns:
        The checkpoint's folder, or None where there is none: both are what the trainer's ``train`` takes.

    Example:
        ::

            trainer.train(resume_from_checkpoint=last_complete_checkpoint(args.output_dir))
    """
    steps = {path: re.fullmatch(r"checkpoint-(\d+)", path.name) for path in Path(folder).glob("checkpoint-*/")}
    for path in sorted((path for path in steps if steps[path]), key=lambda path: -int(steps[path][1])):  # type: ignore[index]
        fault = _fault(path)
        if fault is None:
            return str(path)
        logger.warning(f"{path} is not complete ({fault}): an earlier checkpoint is looked for. It can be deleted.")
    return None


def _fault(checkpoint: Path) -> str | None:
    """What is missing from a checkpoint; None if nothing is."""
    try:
        json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"no {STATE}"
    except ValueError:
        return f"{STATE} is cut short"
    # A run that was resumed from further back writes into folders that have a state already.
    cut = (path for path in sorted(checkpoint.rglob("*")) if not _is_whole(path))
    return next((f"{path.relative_to(checkpoint)} is cut short" for path in cut), None)


def _is_whole(path: Path) -> bool:
    """Whether a file of tensors goes to its end, which neither format needs reading it for."""
    if path.suffix in (".pt", ".pth"):
        return is_zipfile(path)
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt"):
                return True
        except SafetensorError:
            return False
    return True
