"""A trained pointwise model in LangChain, LlamaIndex and rerankers: their scores and order are ours."""

from __future__ import annotations

from typing import Any

import pytest

HOW = "run 'make ecosystem', which installs it"


def test_langchain_reranks_with_it(trained: Any) -> None:
    cross_encoders = pytest.importorskip("langchain_community.cross_encoders", reason=HOW)
    compressors = pytest.importorskip("langchain_classic.retrievers.document_compressors", reason=HOW)
    from langchain_core.documents import Document

    model = cross_encoders.HuggingFaceCrossEncoder(model_name=trained.folder, model_kwargs={"device": "cpu"})
    scores = model.score([(trained.query, doc) for doc in trained.docs])
    assert list(scores) == pytest.approx([trained.scores[doc] for doc in trained.docs], abs=1e-6)
    reranker = compressors.CrossEncoderReranker(model=model, top_n=4)
    documents = [Document(page_content=doc, metadata={"place": place}) for place, doc in enumerate(trained.docs)]
    ranked = reranker.compress_documents(documents, trained.query)
    assert [document.page_content for document in ranked] == trained.ranking[:4]
    assert [trained.docs[document.metadata["place"]] for document in ranked] == trained.ranking[:4]


def test_llama_index_reranks_with_it(trained: Any) -> None:
    sbert_rerank = pytest.importorskip("llama_index.postprocessor.sbert_rerank", reason=HOW)
    from llama_index.core.schema import NodeWithScore, TextNode

    reranker = sbert_rerank.SentenceTransformerRerank(model=trained.folder, device="cpu", top_n=4)
    nodes = [NodeWithScore(node=TextNode(text=doc), score=0.5) for doc in trained.docs]
    ranked = reranker.postprocess_nodes(nodes, query_str=trained.query)
    assert [node.text for node in ranked] == trained.ranking[:4]
    assert [node.score for node in ranked] == pytest.approx(
        [trained.scores[doc] for doc in trained.ranking[:4]], abs=1e-6
    )


def test_rerankers_ranks_with_it(trained: Any) -> None:
    rerankers = pytest.importorskip("rerankers", reason=HOW)
    ranker = rerankers.Reranker(
        trained.folder, model_type="cross-encoder", device="cpu", dtype="float32", batch_size=4, verbose=0
    )
    results = ranker.rank(query=trained.query, docs=trained.docs).results
    assert [result.document.text for result in results] == trained.ranking
    assert [result.score for result in results] == pytest.approx(
        [trained.scores[doc] for doc in trained.ranking], abs=1e-6
    )
