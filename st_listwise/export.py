"""Pointwise models to ONNX, for runtimes without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sentence_transformers.cross_encoder import CrossEncoder
from torch import Tensor, nn

from st_listwise.modules.saving import written_whole
from st_listwise.scoring import check_model
from st_listwise.set_rank_cross_encoder import NOT_IN_ONNX, SetRankCrossEncoder

#: Sizes of both are free in the exported graph; 1 would be taken for a constant.
EXAMPLE = [("a query", "a document"), ("another query", "another document that is longer")]


def export_onnx(model: CrossEncoder, path: str | Path) -> Path:
    """Write the transformer of a pointwise model as an ONNX graph, for pairs of any number and length.

    Inputs are what the tokenizer gives, by its names; the output is ``logits`` ``(pairs, 1)``, the scores before the
    model's activation. ``onnx/model.onnx`` in the model's folder is where other tools look for it. Weights lie beside
    the graph, in ``model.onnx.data``.

    Args:
        model: A transformer with a head, such as BERT, with one label.
        path: The file. It and its weights are written to a temporary name and moved.

    Returns:
        The path.

    Raises:
        ValueError: a set model, whose scores are no function of single pairs; a model of several modules or several
            labels; a path that is a folder.
        ImportError: onnx and onnxscript are not installed.

    Example:
        ::

            export_onnx(model, "model/onnx/model.onnx")
            session = onnxruntime.InferenceSession("model/onnx/model.onnx")
            tokens = model.tokenizer(queries, documents, padding=True, truncation=True, return_tensors="np")
            scores = session.run(["logits"], dict(tokens))[0][:, 0]
    """
    if isinstance(model, SetRankCrossEncoder):
        raise ValueError(f"A set model has no ONNX form: {NOT_IN_ONNX}")
    check_model(model, "export_onnx")
    if len(model) != 1:
        names = ", ".join(type(module).__name__ for module in model)
        raise ValueError(
            f"The scores of this model come from several modules ({names}), of which only the transformer could be "
            "exported. Export one with a head, as CrossEncoder(encoder, num_labels=1) builds it."
        )
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the file, such as {path / 'onnx' / 'model.onnx'}.")
    with written_whole(path.parent) as folder:  # the weights, whose name is longer, are moved first
        _export(model, folder / path.name)
    return path


def _export(model: CrossEncoder, path: Path) -> None:
    features = model.preprocess(EXAMPLE)
    names = [name for name in model.tokenizer.model_input_names if name in features]
    graph = _Logits(model.transformers_model, names).eval()
    pairs, tokens = torch.export.Dim("pairs"), torch.export.Dim("tokens")
    was_training = model.training
    model.eval()
    try:
        torch.onnx.export(
            graph,
            tuple(features[name].to(model.device) for name in names),
            path,
            input_names=names,
            output_names=["logits"],
            dynamic_shapes=(tuple({0: pairs, 1: tokens} for _ in names),),
            dynamo=True,
            verbose=False,
        )
    finally:
        model.train(was_training)


class _Logits(nn.Module):
    """The transformer as a function of tensors in a fixed order."""

    def __init__(self, transformer: Any, names: list[str]) -> None:
        super().__init__()
        self.transformer = transformer
        self.names = names

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.transformer(**dict(zip(self.names, tensors))).logits
