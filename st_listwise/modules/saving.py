"""Configuration and weights of a module, to a folder and back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sentence_transformers.base.modules import Module
from typing_extensions import Self


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A temporary folder whose files are moved into ``folder`` at the end, the last name first; none if it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".saving-") as temporary:
        yield Path(temporary)
        for path in sorted(Path(temporary).iterdir(), reverse=True):
            os.replace(path, folder / path.name)


class SavedModule(Module):
    """A module that its configuration and weights rebuild; sentence-transformers' own ``load`` leaves weights out."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """A new module from what ``get_config_dict`` gave."""
        return cls(**config)

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write to temporary names and move: whoever is killed or meets a full disk leaves the old files whole."""
        with written_whole(Path(output_path)) as folder:
            self.save_config(str(folder))
            self.save_torch_weights(str(folder), safe_serialization=safe_serialization)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:  # type: ignore[override]
        names = ("token", "cache_folder", "revision", "local_files_only")
        where: dict[str, Any] = {name: kwargs[name] for name in names if name in kwargs}
        module = cls.from_config(cls.load_config(model_name_or_path, subfolder=subfolder, **where))
        return cls.load_torch_weights(model_name_or_path, subfolder=subfolder, model=module, **where)
