"""Configuration and weights of a module, to a folder and back."""

from __future__ import annotations

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
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:  # type: ignore[override]
        names = ("token", "cache_folder", "revision", "local_files_only")
        where: dict[str, Any] = {name: kwargs[name] for name in names if name in kwargs}
        module = cls.from_config(cls.load_config(model_name_or_path, subfolder=subfolder, **where))
        return cls.load_torch_weights(model_name_or_path, subfolder=subfolder, model=module, **where)
