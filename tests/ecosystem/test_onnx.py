"""The ONNX graph of a trained pointwise model gives torch's scores, for any number and length of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import CrossEncoder
from tiny_models import tiny_bert, tiny_decoder, tiny_set

from st_listwise.export import export_onnx


@pytest.fixture(scope="module")
def session(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="run 'make ecosystem', which installs it")
    import onnxruntime

    folder = tmp_path_factory.mktemp("onnx")
    model = CrossEncoder(trained.folder, device="cpu").train()
    path = export_onnx(model, folder / "model" / "onnx" / "model.onnx")
    assert model.training
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.onnx", "model.onnx.data"]
    return onnxruntime.InferenceSession(path)


@pytest.mark.parametrize("pairs", [1, 2, 5, 40])
@pytest.mark.parametrize("words", [1, 9, 40])
def test_scores_are_those_of_torch(trained: Any, session: Any, pairs: int, words: int) -> None:
    model = CrossEncoder(trained.folder, device="cpu")
    documents = [" ".join((trained.docs * 10)[place : place + 1 + place % words]) for place in range(pairs)]
    tokens = model.tokenizer([trained.query] * pairs, documents, padding=True, truncation=True, return_tensors="np")
    scores = session.run(["logits"], dict(tokens))[0]
    assert scores.shape == (pairs, 1)
    expected = model.predict([(trained.query, document) for document in documents])
    np.testing.assert_allclose(scores[:, 0], expected, rtol=1e-5, atol=1e-5)  # sums of float32, in another order


def test_models_whose_scores_are_not_the_logits_of_a_pair_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no ONNX form: other runtimes are given single pairs"):
        export_onnx(tiny_set(), tmp_path / "model.onnx")
    with pytest.raises(ValueError, match=r"several modules \(Transformer, LogitScore\)"):
        export_onnx(tiny_decoder(), tmp_path / "model.onnx")
    with pytest.raises(ValueError, match="export_onnx needs a CrossEncoder, got str"):
        export_onnx("a name", tmp_path / "model.onnx")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="export_onnx needs a model with 1 output label, got one with 2"):
        export_onnx(tiny_bert(num_labels=2), tmp_path / "model.onnx")
    with pytest.raises(ValueError, match=r"is a folder: name the file, such as .*model\.onnx"):
        export_onnx(tiny_bert(), tmp_path)
    assert list(tmp_path.iterdir()) == []
