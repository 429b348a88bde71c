"""SetRankCrossEncoder: a CrossEncoder whose scores depend on all documents of a query at once."""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Dense, Module, Transformer
from sentence_transformers.cross_encoder.model_card import CrossEncoderModelCardData
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import batch_to_device, import_from_string
from torch import Tensor, nn
from tqdm.autonotebook import tqdm

from st_listwise.functional.lists import cut_padded
from st_listwise.modules import FeatureVectors, SetRank, SetRankConfig
from st_listwise.modules.inputs import take_initial_scores
from st_listwise.modules.set_rank import check_sizes

logger = logging.getLogger(__name__)

#: Documents, padding included, that set attention sees at once in prediction.
DOCUMENTS_AT_ONCE = 8192
#: What an encoded pair leaves for set attention.
ENCODED = ("sentence_embedding", "initial_scores")
NOT_IN_ONNX = (
    "other runtimes are given single pairs, and set layers score all documents of a query together. Run it with "
    "torch, or train a pointwise CrossEncoder for them."
)

Features = dict[str, Any]
Pair = Sequence[Any]


class SetRankModelCardData(CrossEncoderModelCardData):
    """The card of a set model: its snippet names the class that loads it, and the package to install."""

    @property
    def _input_dim(self) -> int | None:
        return self.model.input_dim if isinstance(self.model, SetRankCrossEncoder) else None

    def run_usage_snippet(self) -> None:
        if self._input_dim is None:  # no text to try a numeric model on
            super().run_usage_snippet()

    def _compute_column_stats(self, dataset: Any, column: str, task: str | None = None) -> dict[str, Any]:
        if self._input_dim is not None and isinstance(dataset[0][column], str):
            return {"dtype": "string", "modality": "", "data": {}}  # the base class would count tokens of the queries
        return super()._compute_column_stats(dataset, column, task)

    def generate_usage_snippet(self) -> str:
        install = "It needs st-listwise as well:\n\n```bash\npip install -U st-listwise\n```\n\n"
        dim = self._input_dim
        if dim is None:
            snippet = super().generate_usage_snippet()
            snippet = snippet.replace("from sentence_transformers import CrossEncoder", _IMPORT)
            snippet = snippet.replace("model = CrossEncoder(", "model = SetRankCrossEncoder(")
            remark = "# All documents of a query belong into one call: each score depends on all of them"
            return install + snippet.replace("# Get scores for pairs of inputs", remark)
        model_id = self.model_id or "cross_encoder_model_id"
        return f"""{install}```python
import numpy as np
{_IMPORT}

# Download from the 🤗 Hub
model = SetRankCrossEncoder("{model_id}")
# All documents of a query, as rows of {dim} features
documents = np.zeros((3, {dim}))
ranks = model.rank("query", documents)
# [{{'corpus_id': ..., 'score': ...}}, {{'corpus_id': ..., 'score': ...}}, ...]
```"""


_IMPORT = "from st_listwise import SetRankCrossEncoder"


class SetRankCrossEncoder(CrossEncoder):
    """A reranker that lets the documents of a query look at each other before it scores them (SetRank).

    Pairs are encoded one by one, in mini-batches of any size; then set attention runs over whole lists. Scores do not
    depend on how pairs are batched, nor on the other queries of a call, but on the documents of their own list.
    Train it with :class:`~sentence_transformers.cross_encoder.CrossEncoderTrainer` and the losses of ``st_listwise``.

    Args:
        model_name_or_path: A saved set model, or an encoder (a name on the Hub, or a folder; a trained pointwise
            cross-encoder as well), from which ``transformer → pooling → SetRank → Dense`` is built.
        features: Numeric documents instead of text: ``FeatureVectors → SetRank → Dense``.
        set_rank: Shape of the set layers, for a model that is built. None: ``SetRankConfig()``.
        pooling: How token vectors become the vector of a pair, for a model that is built: "cls", "mean" or another
            mode of ``Pooling``. None: "mean".
        options: Those of :class:`~sentence_transformers.cross_encoder.CrossEncoder`; ``activation_fn`` is the
            identity unless it is given.

    Raises:
        ValueError: there is not one of a name, features and modules, or one is of another type; more than one label; a
            backend other than "torch"; or ``set_rank`` or ``pooling`` for a saved set model, which has its own.
        ImportError: the saved model needs a newer version of this package.

    Example:
        ::

            model = SetRankCrossEncoder("microsoft/MiniLM-L12-H384-uncased")
            CrossEncoderTrainer(model=model, train_dataset=train_dataset, loss=ListMLELoss(model)).train()
            model.rank("How many people live in Berlin?", documents)

    References:
        - Pang et al., SetRank, SIGIR 2020, https://arxiv.org/abs/1912.05891
    """

    model_card_data_class = SetRankModelCardData

    def __init__(
        self,
        model_name_or_path: str | None = None,
        *,
        features: FeatureVectors | None = None,
        set_rank: SetRankConfig | None = None,
        pooling: str | None = None,
        modules: list[nn.Module] | OrderedDict[str, nn.Module] | None = None,
        **options: Any,
    ) -> None:
        if options.get("num_labels") not in (None, 1):
            raise ValueError(f"num_labels={options['num_labels']}: a SetRankCrossEncoder gives one score a document.")
        if options.get("backend", "torch") != "torch":
            raise ValueError(f"backend={options['backend']!r} is not for set models: {NOT_IN_ONNX}")
        for name, part, kind in (
            ("model_name_or_path", model_name_or_path, (str, os.PathLike)),
            ("features", features, FeatureVectors),
            ("set_rank", set_rank, SetRankConfig),
        ):
            if part is not None and not isinstance(part, kind):
                raise ValueError(
                    f"{name} is {type(part).__name__}: expected SetRankCrossEncoder(name or folder, "
                    "set_rank=SetRankConfig(...)), or features=FeatureVectors.fit(vectors) in place of the name."
                )
        if sum(source is not None for source in (model_name_or_path, features, modules)) != 1:
            raise ValueError("Give one of model_name_or_path, features=FeatureVectors.fit(...), and modules.")
        self._set_rank = set_rank
        self._pooling = pooling
        if features is not None:
            modules = [features, *self._set_modules(features.dim)]
        super().__init__(model_name_or_path, modules=modules, **options)
        if self._set_index() is None:
            raise ValueError("There is no SetRank among the modules; a CrossEncoder takes models without.")
        pooler = getattr(self.transformers_model, "pooler", None)
        if isinstance(pooler, nn.Module):
            pooler.requires_grad_(False)  # token vectors do not go through it: no process may wait for its gradient

    @property
    def input_dim(self) -> int | None:
        """Number of features of a numeric document, or None where documents are text."""
        return self[0].dim if isinstance(self[0], FeatureVectors) else None

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> Features:
        """Pairs → features; ordinal embeddings may be told initial rankings.

        Args:
            inputs: (query, document) pairs. A document is a text, a row of features, or, for a model with ordinal
                embeddings, ``{"text": ..., "initial_scores": [...]}`` with one score for each initial ranking, larger
                is better, minus infinity where a ranking does not have the document. Without scores, the order in
                which documents are given is the one initial ranking.
            prompt: As in ``CrossEncoder.preprocess``.

        Raises:
            ValueError: initial scores for a model without ordinal embeddings, for some documents only, in another
                number than the model has rankings, or NaN.
        """
        pairs, initial_scores = self._part_documents(inputs)
        features = super().preprocess(pairs, prompt=prompt, **kwargs)
        return features if initial_scores is None else {**features, "initial_scores": initial_scores}

    def _part_documents(self, pairs: Sequence[Pair]) -> tuple[list[Pair], Tensor | None]:
        """Pairs as the encoder takes them, and scores of initial rankings where documents bring them."""
        config = next(module for module in self if isinstance(module, SetRank)).set_config
        parted, initial_scores = take_initial_scores(pairs, config.rankings)
        if initial_scores is not None and config.ordinal == "none":
            raise ValueError(
                "Documents bring initial_scores, but this model has no ordinal embeddings: give their texts alone, or "
                'build it with set_rank=SetRankConfig(ordinal="absolute").'
            )
        return parted, initial_scores

    def encode_pairs(self, features: Features) -> dict[str, Tensor]:
        """Run the modules that see each pair alone.

        Args:
            features: What :meth:`preprocess` made of some pairs.

        Returns:
            ``sentence_embedding`` ``(pairs, dim)``, and ``initial_scores`` ``(pairs, rankings)`` where there are any.
        """
        for module in list(self)[: self._set_index()]:
            features = module(features)
        return {key: features[key] for key in ENCODED if key in features}

    def forward(self, input: Features, **kwargs: Any) -> Features:
        """Score whole lists, whose pairs may have been encoded in several parts.

        Args:
            input: Features of pairs, and besides them ``list_sizes``: number of documents of each list; optional
                ``encoded``: earlier parts from :meth:`encode_pairs`, all of them if there are no features of pairs
                besides; optional ``pair_order``: ``(pairs,)``, which pair each row is, earlier parts first; optional
                ``encode_only``: True to do only that.

        Returns:
            Features with ``scores`` ``(pairs, 1)``, in the order of pairs, or what :meth:`encode_pairs` returns.
        """
        if input.pop("encode_only", False):
            return self.encode_pairs(input)
        parts = [*input.pop("encoded", [])]
        if set(input) - {"list_sizes", "pair_order"}:
            parts.append(self.encode_pairs(input))
        joined: Features = {key: torch.cat([part[key] for part in parts]) for key in parts[-1]}
        if (order := input.pop("pair_order", None)) is not None:
            rows = torch.argsort(order).to(joined["sentence_embedding"].device)
            joined = {key: value[rows] for key, value in joined.items()}
        return {**input, **self._score_lists(joined, input.get("list_sizes"))}

    def _score_lists(self, encoded: Features, sizes: Sequence[int] | None) -> Features:
        scored = encoded if sizes is None else {**encoded, "list_sizes": sizes}
        for module in list(self)[self._set_index() :]:
            scored = module(scored)
        return scored

    @torch.inference_mode()
    def predict(  # type: ignore[override]
        self,
        inputs: Sequence[Pair] | Pair,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Tensor], Tensor] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | list[str | torch.device] | None = None,
        pool: dict[Any, Any] | None = None,
        chunk_size: int | None = None,
        list_sizes: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> list[Tensor] | np.ndarray | Tensor:
        """Score pairs; pairs of one query belong together.

        Args:
            inputs: (query, document) pairs, or one such pair: a list of one document.
            prompt_name: As in ``CrossEncoder.predict``.
            prompt: As in ``CrossEncoder.predict``.
            batch_size: Pairs that are encoded at once; scores do not depend on it.
            show_progress_bar: Whether to show progress. None: with logging at level INFO or below.
            activation_fn: Applied to scores. None: the model's own, the identity by default.
            apply_softmax: Has no effect on a model of one label.
            convert_to_numpy: Return an array.
            convert_to_tensor: Return a tensor; goes before ``convert_to_numpy``.
            device: One device, or several for a pool of processes.
            pool: From ``start_multi_process_pool``.
            chunk_size: *Lists* that a process of the pool is given at once.
            list_sizes: Number of documents of each list. None: consecutive pairs of the same query are a list.

        Returns:
            ``(pairs,)`` scores in the order of the inputs.

        Raises:
            ValueError: an input is no pair, ``list_sizes`` do not add up to the number of pairs, or a list is empty.
        """
        if batch_size <= 0:
            raise ValueError(f"batch_size must be a positive integer, got {batch_size}.")
        singular = self._is_one_pair(inputs)
        pairs: list[Any] = [inputs] if singular else list(inputs)
        _check_pairs(pairs)
        if list_sizes is not None:
            check_sizes(list_sizes, len(pairs))
        lists = list(_split(pairs, query_runs(pairs) if list_sizes is None else list_sizes))
        options: dict[str, Any] = {
            "prompt": self._resolve_prompt(prompt, prompt_name),
            "batch_size": batch_size,
            "show_progress_bar": logger.isEnabledFor(logging.INFO) if show_progress_bar is None else show_progress_bar,
            "activation_fn": self.activation_fn if activation_fn is None else activation_fn,
            "apply_softmax": apply_softmax,
            **kwargs,
        }
        # Whole lists are the unit that is handed out, here and to other processes.
        if pool is not None or isinstance(device, list):
            scores = self._multi_process(lists, pool=pool, device=device, chunk_size=chunk_size, **options)
        elif self._distributed_inference is not None and device is None:
            scores = self._distributed_inference(lists, **options)
        else:
            scores = self._inference(lists, device=device, **options)
        scores = scores if isinstance(scores, Tensor) else torch.tensor([])
        if singular:
            scores = scores[0]
        if convert_to_tensor:
            return scores
        return scores.float().cpu().numpy() if convert_to_numpy else list(scores)

    @torch.inference_mode()
    def _inference(  # type: ignore[override]
        self,
        inputs: list[list[Pair]],
        *,
        prompt: str | None,
        batch_size: int,
        show_progress_bar: bool,
        activation_fn: Callable[[Tensor], Tensor] | None,
        apply_softmax: bool | None = None,
        device: str | torch.device | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Scores of whole lists, one list after the other."""
        device = self._resolve_inference_device(device)
        self.eval()
        if not inputs:
            return torch.tensor([], device=device)
        # Before pairs are sorted: messages count documents, and no batch may lack what another one has.
        pairs, initial_scores = self._part_documents([pair for documents in inputs for pair in documents])
        order = np.argsort([-self._input_length(pair) for pair in pairs], kind="stable")
        parts = []
        for start in tqdm(range(0, len(pairs), batch_size), desc="Batches", disable=not show_progress_bar):
            batch = [pairs[index] for index in order[start : start + batch_size]]
            features = self.preprocess(batch, prompt=prompt, **kwargs)
            # Through __call__: a compiled or sharded model knows no other way.
            parts.append(self({**batch_to_device(features, device), "encode_only": True}))
        rows = torch.from_numpy(np.argsort(order)).to(device)
        encoded = {key: torch.cat([part[key] for part in parts])[rows] for key in parts[0]}
        if initial_scores is not None:
            encoded["initial_scores"] = initial_scores.to(device)
        scores = self._score_in_parts(encoded, [len(documents) for documents in inputs])
        scores = scores if scores.dtype == torch.float64 else scores.float()
        return scores if activation_fn is None else activation_fn(scores)

    def _score_in_parts(self, encoded: dict[str, Tensor], sizes: list[int]) -> Tensor:
        """Set attention over lists of like sizes together: little padding, and memory that is bounded."""
        starts = np.cumsum([0, *sizes])
        longest_first = sorted(range(len(sizes)), key=lambda index: -sizes[index])
        order, scores = [], []
        for part_of in cut_padded([sizes[index] for index in longest_first], DOCUMENTS_AT_ONCE):
            lists = longest_first[part_of]
            rows = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in lists])
            rows = rows.to(encoded["sentence_embedding"].device)
            part = {key: value[rows] for key, value in encoded.items()}
            scored = self({"encoded": [part], "list_sizes": [sizes[i] for i in lists]})
            order.append(rows)
            scores.append(scored["scores"].reshape(-1))  # under autocast in another precision than the embeddings
        return torch.cat(scores)[torch.argsort(torch.cat(order))]

    def rank_batch(
        self,
        queries: Sequence[Any],
        docs_lists: Sequence[Sequence[Any]],
        top_k: int | None = None,
        return_documents: bool = False,
        **options: Any,
    ) -> list[list[dict[str, Any]]]:
        """Rank the documents of several queries in one call.

        Args:
            queries: One for each list.
            docs_lists: Documents of each query, at least one: texts, or rows of features.
            top_k: Return the first k documents of each query. None: all.
            return_documents: Whether to return the documents as well, as "text".
            options: Those of :meth:`predict`.

        Returns:
            For each query what ``rank`` returns: dictionaries with "corpus_id" and "score", best first.

        Raises:
            ValueError: the numbers of queries and lists differ, or a list is a text or empty.
        """
        check_lists(queries, docs_lists)
        pairs = [[query, doc] for query, docs in zip(queries, docs_lists) for doc in docs]
        sizes = [len(docs) for docs in docs_lists]
        scores = self.predict(pairs, list_sizes=sizes, **{**options, "convert_to_tensor": True})
        rankings = []
        for docs, own in zip(docs_lists, _split(scores.tolist(), sizes)):  # type: ignore[union-attr]
            ranking = [{"corpus_id": index, "score": score} for index, score in enumerate(own)]
            if return_documents:
                ranking = [{**entry, "text": docs[entry["corpus_id"]]} for entry in ranking]
            rankings.append(sorted(ranking, key=lambda entry: -entry["score"])[:top_k])
        return rankings

    def get_default_activation_fn(self) -> Callable[[Tensor], Tensor]:
        """The identity: raw scores, which no sigmoid makes equal."""
        return nn.Identity()

    def _is_one_pair(self, inputs: Any) -> bool:
        if len(inputs) == 0:
            return False
        first = inputs[0]
        return isinstance(first, (str, dict)) or not hasattr(first, "__len__") or len(first) != 2

    def _set_index(self) -> int | None:
        return next((index for index, module in enumerate(self) if isinstance(module, SetRank)), None)

    def _set_modules(self, input_dim: int) -> list[Module]:
        set_rank = SetRank(input_dim, self._set_rank)
        scores = Dense(
            set_rank.width,
            1,
            activation_function=nn.Identity(),
            module_input_name="set_embedding",
            module_output_name="scores",
        )
        return [set_rank, scores]

    def _load_default_modules(
        self,
        model_name_or_path: str,
        token: bool | str | None,
        cache_folder: str | None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        local_files_only: bool = False,
        model_kwargs: dict[str, Any] | None = None,
        processor_kwargs: dict[str, Any] | None = None,
        config_kwargs: dict[str, Any] | None = None,
    ) -> tuple[list[nn.Module], dict[str, Any]]:
        shared = {
            "token": token,
            "trust_remote_code": trust_remote_code,
            "revision": revision,
            "local_files_only": local_files_only,
        }
        if not local_files_only:
            self.model_card_data.set_base_model(model_name_or_path, revision=revision)
        transformer = Transformer(
            model_name_or_path,
            transformer_task="feature-extraction",
            cache_dir=cache_folder,
            model_kwargs={**shared, **(model_kwargs or {})},
            processor_kwargs={**shared, **(processor_kwargs or {})},
            config_kwargs={**shared, **(config_kwargs or {})},
            backend=self.backend,
        )
        dim = transformer.get_embedding_dimension()
        return [transformer, Pooling(dim, pooling_mode=self._pooling or "mean"), *self._set_modules(dim)], {}

    def _load_config_modules(self, model_name_or_path: str, *args: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Saved set models as they are; a saved pointwise model gives its encoder."""
        given = self.activation_fn
        modules, module_kwargs = super()._load_config_modules(model_name_or_path, *args, **options)
        if any(isinstance(module, SetRank) for module in dict(modules).values()):  # type: ignore[arg-type]
            if self._set_rank is not None or self._pooling is not None:
                raise ValueError(
                    f"{model_name_or_path} is a saved set model with layers of its own: leave out set_rank and "
                    "pooling, or build a new model from an encoder."
                )
            return modules, module_kwargs
        self.activation_fn = given  # not that of the pointwise model, often a sigmoid
        return self._load_default_modules(model_name_or_path, *args, **options)

    def _load_module_class_from_ref(self, class_ref: str, *args: Any, **kwargs: Any) -> type:
        """Our own modules are trusted, as sentence-transformers' are; everything else is as it was."""
        if class_ref.startswith("st_listwise.modules."):
            return import_from_string(class_ref)
        return super()._load_module_class_from_ref(class_ref, *args, **kwargs)

    def _get_model_config(self) -> dict[str, Any]:
        version = importlib.metadata.version("st-listwise")
        needed = {"specifier": f">={version}", "reason": "the model was saved with this version's set layers"}
        return super()._get_model_config() | {"requirements": {"st-listwise": needed}}

    def _push_to_hub_usage_tip(self, repo_id: str) -> str:
        tip = super()._push_to_hub_usage_tip(repo_id)
        return tip.replace(f"from sentence_transformers import {type(self).__name__}", _IMPORT)


def query_runs(pairs: Sequence[Pair]) -> list[int]:
    """Sizes of the lists that consecutive pairs of the same query make up.

    >>> query_runs([("a", "x"), ("a", "y"), ("b", "x"), ("a", "x")])
    [2, 1, 1]
    """
    return [len(list(run)) for _, run in groupby(pairs, key=lambda pair: pair[0])]


def check_lists(queries: Any, docs_lists: Any) -> None:
    """ValueError unless there is a list of documents for each query: a text would be taken for its characters."""
    if isinstance(queries, str):
        raise ValueError(f"queries is one text, {queries!r:.60}, expected a list of queries. For one query use rank.")
    if len(queries) != len(docs_lists):
        raise ValueError(f"{len(queries)} queries were given, but {len(docs_lists)} lists of documents.")
    for index, docs in enumerate(docs_lists):
        if isinstance(docs, str) or not hasattr(docs, "__len__"):
            raise ValueError(f"documents of query {index} is {docs!r:.60}, expected a list of documents.")


def _check_pairs(pairs: Sequence[Any]) -> None:
    """ValueError unless each is a query and a document."""
    for index, pair in enumerate(pairs):
        if isinstance(pair, (str, dict)) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise ValueError(f"Input {index} is no (query, document) pair: {pair!r:.80}")


def _split(items: Sequence[Any], sizes: Sequence[int]) -> Iterator[Any]:
    start = 0
    for size in sizes:
        yield items[start : start + size]
        start += size
