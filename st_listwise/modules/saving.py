"""Configuration and weights of a module, to a folder and back."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sentence_transformers.base.modules import Module
from typing_extensions import Self


class SavedModule(Module):
    """A module that its configuration and weights rebuild; sentence-transformers' own ``load`` leaves weights out."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """A new module from what ``get_config_dict`` gave."""
        return cls(**config)

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write to temporary names and move: whoever is killed or meets a full disk leaves the old files whole."""
        os.makedirs(output_path, exist_ok=True)
        with TemporaryDirectory(dir=output_path, prefix=".saving-") as folder:
            self.save_config(folder)
            self.save_torch_weights(folder, safe_serialization=safe_serialization)
            for path in Path(folder).iterdir():
                os.replace(path, Path(output_path, path.name))

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:  # type: ignore[override]
        names = ("token", "cache_folder", "revision", "local_files_only")
        where: dict[str, Any] = {name: kwargs[name] for name in names if name in kwargs}
        module = cls.from_config(cls.load_config(model_name_or_path, subfolder=subfolder, **where))
        return cls.load_torch_weights(model_name_or_path, subfolder=subfolder, model=module, **where)
