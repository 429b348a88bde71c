"""The set layers: a slow reference, permutations, padding, ordinal embeddings, numeric documents."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import Tensor, nn

from st_listwise import FeatureVectors, SetRankConfig
from st_listwise.modules import IMSAB, MSAB, OrdinalEmbedding, SetRank
from st_listwise.modules.ordinal import positions_from_scores

WIDTH, HEADS = 12, 3
OPTIONS: list[dict[str, Any]] = [
    {},
    {"norm": "post"},
    {"norm": "post", "qkv_relu": True, "output_projection": False},
    {"feed_forward": 7},
]
BLOCKS = [MSAB, IMSAB]


def randomised(module: nn.Module, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return module.eval()


# A slow reference on one list, one document and head at a time, in numpy


def norm(module: nn.LayerNorm, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + module.eps)
    return scaled * module.weight.numpy() + module.bias.numpy()


def linear(module: nn.Module, x: np.ndarray) -> np.ndarray:
    return x @ module.weight.numpy().T + module.bias.numpy() if isinstance(module, nn.Linear) else x


def attention(module: Any, queries: np.ndarray, keys: np.ndarray, relu: bool) -> np.ndarray:
    q, k, v = linear(module.query, queries), linear(module.key, keys), linear(module.value, keys)
    if relu:
        q, k, v = np.maximum(q, 0), np.maximum(k, 0), np.maximum(v, 0)
    size = WIDTH // HEADS
    out = np.zeros_like(q)
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        for i in range(len(q)):
            weights = [math.exp(q[i, part] @ k[j, part] / math.sqrt(size)) for j in range(len(k))]
            out[i, part] = sum(w * v[j, part] for j, w in enumerate(weights)) / sum(weights)
    return linear(module.output, out)


def feed_forward(module: Any, x: np.ndarray) -> np.ndarray:
    return linear(module[2], np.maximum(linear(module[0], x), 0))


def reference(block: Any, x: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    relu, post = options.get("qkv_relu", False), options.get("norm") == "post"

    def attend(documents: np.ndarray) -> np.ndarray:
        if isinstance(block, MSAB):
            return attention(block.attention, documents, documents, relu)
        inducing = block.inducing.numpy()
        induced = norm(block.induced_norm, inducing + attention(block.induced_attention, inducing, documents, relu))
        return attention(block.attention, documents, induced, relu)

    if post:
        b = norm(block.attention_norm, x + attend(x))
        return norm(block.feed_forward_norm, b + feed_forward(block.feed_forward, b))
    b = x + attend(norm(block.attention_norm, x))
    return b + feed_forward(block.feed_forward, norm(block.feed_forward_norm, b))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("block_class", BLOCKS)
@torch.no_grad()
def test_a_block_is_what_its_formula_says_on_padded_lists(block_class: Any, options: dict[str, Any]) -> None:
    block = randomised(block_class(WIDTH, HEADS, **options)).double()
    documents = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    documents[~mask] = 1e4  # what stands in the padding must not matter
    out = block(documents, mask)
    for row, size in enumerate((5, 2)):
        expected = reference(block, documents[row, :size].numpy(), options)
        np.testing.assert_allclose(out[row, :size].numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("block_class", BLOCKS)
def test_a_list_of_padding_alone_gives_no_nan(block_class: Any) -> None:
    block = randomised(block_class(WIDTH, HEADS))
    documents = torch.randn(2, 3, WIDTH, requires_grad=True)
    out = block(documents, torch.tensor([[True, True, False], [False] * 3]))
    out[0, :2].sum().backward()
    assert torch.isfinite(documents.grad).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in block.parameters())


@pytest.mark.parametrize("docs", [1, 2, 17, 1000])
@pytest.mark.parametrize("inducing_points", [0, 20])
@torch.no_grad()
def test_permuted_documents_get_permuted_vectors(docs: int, inducing_points: int) -> None:
    config = SetRankConfig(width=64, inducing_points=inducing_points, identity_start=False)
    module = SetRank(10, config).eval()
    vectors, other = torch.randn(docs, 10), torch.randn(30, 10)
    order = torch.randperm(docs)
    given = embed(module, torch.cat([vectors, other]), [docs, 30])[:docs]
    permuted = embed(module, torch.cat([vectors[order], other]), [docs, 30])[:docs]
    torch.testing.assert_close(permuted, given[order], rtol=0, atol=1e-6 * float(given.abs().max()))
    alone = embed(module, vectors, [docs])
    torch.testing.assert_close(alone, given, rtol=0, atol=1e-6 * float(given.abs().max()))


def embed(module: SetRank, vectors: Tensor, sizes: list[int], **features: Any) -> Tensor:
    return module({"sentence_embedding": vectors, "list_sizes": sizes, **features})["set_embedding"]


def test_an_identity_start_leaves_vectors_as_they_are_and_still_learns() -> None:
    module = SetRank(16, SetRankConfig(heads=4, inducing_points=3, dropout=0.0))
    vectors = torch.randn(9, 16)
    out = embed(module, vectors, [4, 5])
    assert torch.equal(out, vectors)
    out.pow(2).sum().backward()
    assert all(block.attention.output.weight.grad.abs().max() > 0 for block in module.blocks)


def test_the_paper_settings_are_those_of_the_authors_code() -> None:
    module = SetRank(46, SetRankConfig.paper())
    assert len(module.blocks) == 6
    block = module.blocks[0]
    assert isinstance(block, IMSAB)
    assert block.inducing.shape == (20, 256)
    assert block.inducing.std().item() == pytest.approx(0.1, rel=0.05)
    assert block.feed_forward[0].out_features == 1024
    assert not block.pre_norm
    assert block.dropout.p == 0
    for attended in (block.attention, block.induced_attention):
        assert isinstance(attended.activation, nn.ReLU)
        assert isinstance(attended.output, nn.Identity)
        assert (attended.heads, attended.dropout) == (8, 0)
    assert isinstance(SetRank(46, SetRankConfig.paper(inducing_points=0)).blocks[0], MSAB)


@pytest.mark.parametrize("inducing_points", [0, 3])
def test_a_shape_of_ones_own_reaches_every_block(inducing_points: int) -> None:
    config = SetRankConfig(heads=2, feed_forward=1.5, dropout=0.3, qkv_relu=True, inducing_points=inducing_points)
    for block in SetRank(16, config).blocks:
        assert block.feed_forward[0].out_features == 24
        assert block.dropout.p == 0.3
        assert block.pre_norm
        for attended in [block.attention, *([block.induced_attention] if inducing_points else [])]:
            assert (attended.heads, attended.dropout) == (2, 0.3)
            assert isinstance(attended.activation, nn.ReLU)
            assert isinstance(attended.output, nn.Linear)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MSAB(10, 3), "heads=3 must divide the width, 10"),
        (lambda: MSAB(12, 3, norm="middle"), "norm='middle'"),  # type: ignore[arg-type]
        (lambda: MSAB(12, 3, norm="post", identity_start=True), "identity_start=True needs"),
        (lambda: IMSAB(12, 3, 0), "inducing_points=0"),
        (lambda: OrdinalEmbedding(4, 0), "max_docs=0"),
        (
            lambda: SetRankConfig(ordinal="random"),  # type: ignore[arg-type]
            "ordinal='random' is not known; choose one of 'none', 'absolute', 'relative'",
        ),
        (lambda: SetRankConfig.paper(norm="middle"), "norm='middle' is not known; choose one of 'pre', 'post'"),
        (lambda: OrdinalEmbedding(4, 5, sampling="random"), "sampling='random'"),  # type: ignore[arg-type]
        (lambda: embed(SetRank(8), torch.ones(3, 8), [2, 2]), "add up to 4, but there are 3 pairs"),
        (lambda: embed(SetRank(8), torch.ones(3, 8), [3, 0]), "list 1 is empty"),
        (lambda: SetRank(8)({"sentence_embedding": torch.ones(3, 8)}), "SetRankCrossEncoder"),
    ],
)
def test_bad_shapes_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


# Ordinal embeddings


def test_absolute_positions_take_their_rows_and_several_rankings_are_summed() -> None:
    ordinal = OrdinalEmbedding(2, max_docs=3, rankings=2, sampling="absolute")
    with torch.no_grad():
        ordinal.tables.copy_(torch.arange(12.0).view(2, 3, 2))
    positions = torch.tensor([[[0, 2], [1, 0], [2, 1]]])
    expected = [[0 + 10, 1 + 11], [2 + 6, 3 + 7], [4 + 8, 5 + 9]]  # row of the first table + row of the second
    assert ordinal(positions, torch.tensor([3]))[0].tolist() == expected


def test_relative_positions_start_anywhere_in_training_and_at_the_first_row_otherwise() -> None:
    ordinal = OrdinalEmbedding(1, max_docs=10, sampling="relative")
    with torch.no_grad():
        ordinal.tables.copy_(torch.arange(10.0).view(1, 10, 1))
    positions = torch.arange(4).expand(5000, 4)[..., None]
    sizes = torch.full((5000,), 4)
    rows = ordinal.train()(positions, sizes)[..., 0].detach()
    assert torch.equal(rows - rows[:, :1], torch.arange(4.0).expand(5000, 4))
    counts = torch.bincount(rows[:, 0].long(), minlength=7)
    assert len(counts) == 7  # starts 0 … 6
    assert (counts - 5000 / 7).abs().max() < 5 * math.sqrt(5000 / 7)
    assert ordinal.eval()(positions, sizes)[..., 0].unique().tolist() == [0, 1, 2, 3]


def test_positions_come_from_the_initial_scores_of_each_list() -> None:
    scores = torch.tensor([[[0.1, 3.0], [0.9, 1.0], [0.1, 2.0]], [[5.0, 0.0], [7.0, 9.0], [99.0, 99.0]]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    positions = positions_from_scores(scores, mask)
    assert positions[0].tolist() == [[1, 0], [0, 2], [2, 1]]  # ties keep the given order
    assert positions[1, :2].tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize("ordinal", ["absolute", "relative"])
def test_a_list_longer_than_the_ordinal_table_is_named(ordinal: Any) -> None:
    module = SetRank(8, SetRankConfig(ordinal=ordinal, max_docs=4))
    with pytest.raises(ValueError, match="List 1 has 5 documents, more than the 4 rows"):
        embed(module, torch.ones(7, 8), [2, 5])


def test_the_number_of_initial_rankings_must_fit() -> None:
    module = SetRank(8, SetRankConfig(ordinal="absolute", rankings=2))
    with pytest.raises(
        ValueError, match=r"Expected 2 initial rankings, got 1\. Give each document's scores in all of them"
    ):
        embed(module, torch.ones(7, 8), [7])


def test_ordinal_embeddings_see_the_given_order_and_initial_scores_undo_it() -> None:
    module = SetRank(8, SetRankConfig(heads=4, ordinal="absolute", identity_start=False)).eval()
    vectors, order = torch.randn(6, 8), torch.tensor([3, 1, 5, 0, 2, 4])
    assert not torch.allclose(embed(module, vectors[order], [6]), embed(module, vectors, [6])[order], atol=1e-3)
    scores = torch.tensor([6.0, 5, 4, 3, 2, 1])[:, None]
    by_score = embed(module, vectors, [6], initial_scores=scores)
    permuted = embed(module, vectors[order], [6], initial_scores=scores[order])
    torch.testing.assert_close(permuted, by_score[order], rtol=1e-5, atol=1e-5)


# Numeric documents


def test_features_are_normalised_with_the_statistics_of_the_training_set() -> None:
    module = FeatureVectors.fit(
        [[0.0, 5.0, -math.e + 1], [math.e - 1, 5.0, 0.0]]
    )  # log1p: 0 and 1; constant; -1 and 0
    features = module(module.preprocess([("q", [0.0, 5.0, 0.0]), ("q", [math.e - 1, 7.0, -math.e + 1])]))
    expected = torch.tensor([[-1.0, 0.0, 1.0], [1.0, 0.0, -1.0]])  # mean .5 and sd .5; mean -.5 and sd .5
    torch.testing.assert_close(features["sentence_embedding"], expected, rtol=1e-5, atol=1e-6)
    raw = FeatureVectors.fit([[2.0], [4.0]], log1p=False)
    assert raw(raw.preprocess([("q", [5.0])]))["sentence_embedding"].item() == 2.0  # (5 - 3) / 1


def test_columns_of_initial_rankings_are_passed_on_raw() -> None:
    module = FeatureVectors.fit([[0.0, 5.0], [3.0, 9.0]], ranking_columns=[1])
    assert module(module.preprocess([("q", [0.0, 5.0]), ("q", [3.0, 9.0])]))["initial_scores"].tolist() == [[5], [9]]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (
            [("a", [1.0, 2.0]), ("b", [1.0, 2.0]), ("b", [1.0])],
            r"query 'b', document 1 has shape \(1,\).*vectors of 2",
        ),
        ([("a", [1.0, math.nan])], "feature 1 of query 'a', document 0 is nan"),
        ([("a", [1.0, 2.0]), ("a", [math.inf, 2.0])], "feature 0 of query 'a', document 1 is inf"),
        ([("a", ["x", 2.0])], "query 'a', document 0 is no vector of numbers"),
        ([("a", [1.0, 2.0]), ("a", "text")], "query 'a', document 1 is no vector of numbers"),
    ],
)
def test_bad_vectors_are_named(pairs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FeatureVectors(2).preprocess(pairs)


def test_a_training_set_with_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="feature 0 of document 1 is nan"):
        FeatureVectors.fit([[1.0], [math.nan]])
    with pytest.raises(ValueError, match=r"got \(0,\)"):
        FeatureVectors.fit([])


LETOR: list[dict[str, Any]] = [{"docs": [[1.0, 2.0]]}, {"docs": [[3.0, 4.0], [5.0, 6.0]]}]


@pytest.mark.parametrize("lists", [[0, 1], [0, 0]], ids=["ragged", "of one length"])
def test_lists_of_vectors_were_numpys_inhomogeneous_shape(lists: list[int]) -> None:
    docs = Dataset.from_list(LETOR).select(lists)["docs"]
    message = r"vectors must be one \(documents, features\) array.*; put lists together with np\.concatenate"
    with pytest.raises(ValueError, match=message):
        FeatureVectors.fit(docs)
    assert FeatureVectors.fit(np.concatenate(docs)).dim == 2
    with pytest.raises(ValueError, match=message):
        FeatureVectors.fit(Dataset.from_list(LETOR))


@pytest.mark.parametrize("columns", [[2], [-1], 1, ["BM25"], [0.5]], ids=str)
def test_ranking_columns_that_are_no_columns_are_refused(columns: Any) -> None:
    with pytest.raises(ValueError, match=r"^ranking_columns=.* must be a list of whole numbers between 0 and 1\."):
        FeatureVectors(2, ranking_columns=columns)


@pytest.mark.parametrize("dim", [np.zeros((3, 2)), "46", 0], ids=type)
def test_vectors_in_place_of_their_width_are_refused(dim: Any) -> None:
    with pytest.raises(ValueError, match=r"(?s)^dim is .*, expected the number of features\. FeatureVectors\.fit"):
        FeatureVectors(dim)


def test_ranking_columns_of_numpy_are_saved_as_plain_numbers() -> None:
    assert json.loads(json.dumps(FeatureVectors(2, ranking_columns=np.array([1])).get_config_dict())) == {
        "dim": 2,
        "log1p": True,
        "ranking_columns": [1],
    }
