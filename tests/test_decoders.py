"""Decoder rerankers: prefixes that are computed once, templates, truncation, LoRA, several processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import torch.distributed as dist
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from tiny_models import tiny_bert, tiny_decoder, tiny_set
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from st_listwise import CombinedLoss, ListMLELoss, ListNetLoss, ListwiseDataCollator
from st_listwise.losses.base import ListwiseLoss
from st_listwise.scoring import MiniBatches
from st_listwise.shared_prefix import score_after_prefixes, split_prefixes

QUERIES = ["what is a bear", "how fast", "why", "capital of france, and where does it lie"]
DOCS = [
    ["an animal", "an animal with a coat", "an animal", "x"],  # of one beginning, one twice
    ["fast as light"],  # alone
    ["cat", "dogs"],
    ["paris is the capital and lies on the seine", "rome", "lyon", "lille", "paris"],
]
LABELS = [[1.0, 0.0, 3.0, 2.0], [1.0], [0.0, 1.0], [2.0, 0.0, 1.0, 0.0, 1.0]]
PAIRS = [(query, doc) for query, docs in zip(QUERIES, DOCS) for doc in docs]
MODELS = {"yes or no": {}, "template": {"template": True}, "head": {"head": True}}
LIMITS = [{}, {"mini_batch_size": 1}, {"mini_batch_size": 3}, {"mini_batch_size": 0}, {"mini_batch_tokens": 40}]


def _step(loss: ListwiseLoss, lists: slice = slice(None)) -> tuple[Tensor, dict[str, Tensor]]:
    """The value of a loss, and the gradient of each parameter."""
    loss.model.zero_grad()
    value = loss([QUERIES[lists], DOCS[lists]], [torch.tensor(row) for row in LABELS[lists]])
    value.backward()
    gradients = {name: part.grad.clone() for name, part in loss.model.named_parameters() if part.grad is not None}
    return value.detach(), gradients


def _in_double(model: CrossEncoder) -> CrossEncoder:
    """The model with norms that do not round to single precision on their way, as transformers' do."""
    for module in model.modules():
        if isinstance(module, Qwen3RMSNorm):
            module.forward = partial(_rms_norm, module)  # type: ignore[method-assign]
    return model.double()


def _rms_norm(module: Qwen3RMSNorm, values: Tensor) -> Tensor:
    return nn.functional.rms_norm(values, module.weight.shape, module.weight, module.variance_epsilon)


@pytest.mark.parametrize("kind", MODELS)
def test_value_and_gradient_are_those_of_whole_pairs(kind: str) -> None:
    """The gradient of a prefix is the sum over its documents. Whole pairs run alone: padding moves rotary positions,
    which are single precision in a double model."""
    model = _in_double(tiny_decoder(**MODELS[kind]))
    expected = _step(ListMLELoss(model, mini_batch_size=1))
    for limits, recompute in itertools.product(LIMITS, [False, True, "auto"]):
        found = _step(ListMLELoss(model, share_prefix=True, recompute=recompute, **limits))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", MODELS)
def test_scores_are_those_of_predict_in_the_order_of_the_pairs(kind: str) -> None:
    model = tiny_decoder(**MODELS[kind])
    expected = torch.stack([model.predict([pair], convert_to_tensor=True)[0] for pair in PAIRS])
    _, scores = ListMLELoss(model, mini_batch_size=2, share_prefix=True).score(
        [QUERIES, DOCS], list(map(torch.tensor, LABELS))
    )
    torch.testing.assert_close(scores.detach(), expected, rtol=1e-5, atol=1e-5)


DECODER = tiny_decoder()


@given(data=st.data())
def test_prefix_and_own_tokens_make_the_pair_and_no_longer_prefix_is_shared(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    rows = [data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=7)) for _ in range(sum(sizes))]
    order = torch.tensor(data.draw(st.permutations(range(len(rows)))))
    limits = data.draw(st.sampled_from([{"mini_batch_size": 2}, {"mini_batch_tokens": 6}, {"mini_batch_size": 0}]))
    whole = MiniBatches(order, [_left_padded([rows[i] for i in order])])
    batches = split_prefixes(DECODER, whole, sizes, **limits)
    assert sorted(batches.order.tolist()) == list(range(len(rows)))
    prefix_of, own_of = _pieces(batches)
    assert [prefix_of[i] + own_of[i] for i in range(len(rows))] == rows
    for members in torch.arange(len(rows)).split(sizes):
        assert len({tuple(prefix_of[i]) for i in members.tolist()}) == 1
        own = [own_of[i] for i in members.tolist()]
        assert min(map(len, own)) >= 1
        assert min(map(len, own)) == 1 or len({tokens[0] for tokens in own}) > 1


def _left_padded(rows: list[list[int]]) -> dict[str, Any]:
    width = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[0] * (width - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
    }


def _pieces(batches: MiniBatches) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Prefix and own tokens of each pair, with a check of masks and positions."""
    prefix_of, own_of = {}, {}
    order = iter(batches.order.tolist())
    for features in batches.features:
        prefixes = batches.prefixes[features["prefix"]]
        for ids, mask, positions, row in zip(
            *(features[name] for name in ("input_ids", "attention_mask", "position_ids", "prefix_rows"))
        ):
            prefix_mask = prefixes["attention_mask"][row].bool()
            assert mask[: len(prefix_mask)].tolist() == prefixes["attention_mask"][row].tolist()
            own_mask = mask[len(prefix_mask) :].bool()
            pair = next(order)
            prefix_of[pair] = prefixes["input_ids"][row][prefix_mask].tolist()
            own_of[pair] = ids[own_mask].tolist()
            found = prefixes["position_ids"][row][prefix_mask].tolist() + positions[own_mask].tolist()
            assert found == list(range(len(prefix_of[pair]) + len(own_of[pair])))
    return prefix_of, own_of


def test_each_prefix_runs_once() -> None:
    model = tiny_decoder()
    computed: list[int] = []
    model[0].auto_model.model.embed_tokens.register_forward_hook(lambda _, ids, out: computed.append(ids[0].numel()))
    docs = ["bears are large", "a fish", "paris"]
    loss = ListMLELoss(model, mini_batch_size=1, share_prefix=True)
    loss([["what is a bear?"], [docs]], [torch.tensor([2.0, 1.0, 0.0])])
    assert computed == [15, 15, 6, 5]  # one token a character: the query, then the documents by length


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(
            [[5, 6, 7, 0], [5, 6, 7, 8, 0], [5, 6, 7, 0]], id="one ends within another, with a padding token"
        ),
        pytest.param([[5, 6], [7, 8, 9], [8]], id="nothing in common"),
        pytest.param([[5], [5], [5]], id="one token"),
    ],
)
def test_edges_are_scored_as_each_row_alone(rows: list[list[int]]) -> None:
    """Heads of sequence classification read the last token other than padding, and some models pad with the token that
    ends a text: that token alone would be no document."""
    model = _in_double(tiny_decoder(head=True))
    expected = torch.cat([model(_left_padded([row]))["scores"].flatten() for row in rows])
    scores = score_after_prefixes(
        model, split_prefixes(model, MiniBatches(torch.arange(3), [_left_padded(rows)]), [3])
    )
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-12)


def test_recomputing_replays_dropout_bit_by_bit() -> None:
    model = tiny_decoder(dropout=0.3).train()
    gradients = []
    for recompute in (False, True, "auto"):
        torch.manual_seed(7)
        gradients.append(
            _step(ListMLELoss(model, mini_batch_size=2, share_prefix=True, recompute=recompute))[1]  # type: ignore[arg-type]
        )
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name])
        assert torch.equal(gradient, gradients[2][name])


@pytest.mark.parametrize(("recompute", "grows"), [(True, False), (False, True)])
def test_recomputing_keeps_the_graph_of_one_mini_batch_only(recompute: bool, grows: bool) -> None:
    def saved(docs: int) -> int:
        model = tiny_decoder()
        loss = ListMLELoss(model, mini_batch_size=1, share_prefix=True, recompute=recompute)
        ready = loss.prepare([["capital of france"], [DOCS[3][:1] * docs]], [torch.arange(float(docs))])
        seen: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            seen[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            score_after_prefixes(model, ready.mini_batches, recompute=recompute).sum()
        return sum(seen.values()) - sum(parameter.numel() for parameter in model.parameters())

    assert (saved(24) > 1.2 * saved(2)) == grows


def test_auto_keeps_no_graph_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts forward passes of the prefix and two mini-batches: again in backward, all but the last."""
    model = tiny_decoder()
    calls: list[int] = []
    model[0].auto_model.model.register_forward_hook(lambda *_: calls.append(1))
    loss = ListMLELoss(model, mini_batch_size=1, share_prefix=True, recompute="auto")
    for free, expected in [(2**30, 3), (0, 5)]:
        monkeypatch.setattr("st_listwise.shared_prefix.free_memory", lambda *_, free=free: float(free))
        calls.clear()
        loss([["q"], [["ab", "c"]]], [torch.tensor([1.0, 0.0])]).backward()
        assert len(calls) == expected


def test_a_batch_made_ready_by_a_worker_and_combined_losses_give_the_same() -> None:
    model = _in_double(tiny_decoder())
    loss = ListNetLoss(model, share_prefix=True)
    labels = list(map(torch.tensor, LABELS))
    expected = ListNetLoss(model)([QUERIES, DOCS], labels)
    torch.testing.assert_close(loss([loss.prepare([QUERIES, DOCS], labels)], None), expected, rtol=1e-6, atol=1e-6)
    combined = CombinedLoss({"one": (ListNetLoss(model), 2.0)}, share_prefix=True)
    torch.testing.assert_close(combined([QUERIES, DOCS], labels)["one"], 2 * expected, rtol=1e-6, atol=1e-6)
    assert type(loss)(model, **loss.get_config_dict()).share_prefix
    assert combined.get_config_dict()["share_prefix"]


def _configured(**config: Any) -> CrossEncoder:
    model = tiny_decoder()
    for name, value in config.items():
        setattr(model[0].config, name, value)
    return model


REFUSED = {
    "an encoder": (tiny_bert, "takes no keys and values"),
    "sets": (tiny_set, "look at all tokens"),
    "sliding window": (
        lambda: tiny_decoder(use_sliding_window=True, sliding_window=16, max_window_layers=1),
        "do not keep all tokens .DynamicSlidingWindowLayer",
    ),
    "bidirectional": (lambda: _configured(is_causal=False), "attends in both directions"),
    "rotary by length": (lambda: _configured(rope_parameters={"rope_type": "dynamic"}), "change with the length"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_models_that_cannot_share_a_prefix_are_refused_with_the_reason(what: str) -> None:
    build, reason = REFUSED[what]
    with pytest.raises(ValueError, match=rf"share_prefix=True is for decoders.*{reason}"):
        ListMLELoss(build(), share_prefix=True)


def test_right_padding_is_refused() -> None:
    model = tiny_decoder(head=True)
    model.tokenizer.padding_side = "right"
    with pytest.raises(ValueError, match="padding_side = 'left'"):
        _step(ListMLELoss(model, share_prefix=True))


def test_flattened_inputs_are_refused() -> None:
    flat = MiniBatches(torch.arange(2), [{"input_ids": torch.tensor([[1, 2, 1, 3]]), "position_ids": None}])
    with pytest.raises(ValueError, match="unpad_inputs=False"):
        split_prefixes(tiny_decoder(), flat, [2])


def test_gradient_checkpointing_which_drops_the_cache_is_refused() -> None:
    """transformers runs such layers without the cache: documents would be scored without their query."""
    model = tiny_decoder().train()
    model[0].auto_model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="recompute=True instead"):
        _step(ListMLELoss(model, share_prefix=True))


@pytest.mark.parametrize(("prompt", "instruction"), [(None, "find answers"), ("judge it", "judge it")])
def test_prompt_and_template_stand_in_the_prefix_and_the_turn_after_the_document_in_each_pair(
    prompt: str | None, instruction: str
) -> None:
    model = tiny_decoder(template=True)
    loss = ListMLELoss(model, share_prefix=True)
    batch = loss.prepare([["why"], [["because", "so"]]], [torch.tensor([1.0, 0.0])], prompt=prompt)
    (prefix,) = batch.mini_batches.prefixes
    assert _text(model, prefix["input_ids"][0]) == (
        f"<turn>say yes or no.<end><turn>instruct: {instruction} query: why document: "
    )
    own_of = _pieces(batch.mini_batches)[1]
    texts = [_text(model, own_of[pair]) for pair in (0, 1)]
    assert texts == ["because<end><turn>answer: ", "so<end><turn>answer: "]


def _text(model: CrossEncoder, ids: Tensor | list[int]) -> str:
    return "".join(model.tokenizer.convert_ids_to_tokens(list(map(int, ids))))


@pytest.mark.parametrize("share_prefix", [False, True])
def test_truncation_eats_the_document_and_not_the_turn_after_it(share_prefix: bool) -> None:
    """With a template sentence-transformers writes the last turn again after it has cut. What a user glues to
    documents by hand is cut off with their end."""
    model = tiny_decoder(template=True)
    model.max_seq_length = 100
    inputs = [["why"], [["a" * 300, "b" * 300]]]
    batch = ListMLELoss(model, share_prefix=share_prefix).prepare(inputs, [torch.tensor([1.0, 0.0])])
    for ids in batch.mini_batches.features[0]["input_ids"]:
        assert _text(model, ids).endswith("aaa<end><turn>answer: ") or _text(model, ids).endswith(
            "bbb<end><turn>answer: "
        )
    by_hand = tiny_decoder()
    by_hand.max_seq_length = 100
    ids = by_hand.preprocess([("query: why document: ", "a" * 300 + " answer: ")])["input_ids"][0]
    assert _text(by_hand, ids) == "query: why document: " + "a" * 79


def test_a_query_that_leaves_no_room_for_documents_warns(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_decoder(template=True)
    model.max_seq_length = 100
    loss = ListMLELoss(model, share_prefix=True)
    loss([["why " * 50], [["because", "so"]]], [torch.tensor([1.0, 0.0])])
    assert "100% of the pairs of a batch (2 of 2) are cut to the same 100 tokens" in caplog.text


@pytest.mark.parametrize("head", [True, False])
def test_trained_adapters_and_head_are_saved_and_restored(head: bool, tmp_path: Path) -> None:
    """Users found heads frozen, not saved, or not restored. peft changes the model in place: the CrossEncoder that
    holds it trains the adapters, merged it is a stock folder again."""
    tiny_decoder(template=True, head=head).save_pretrained(str(tmp_path / "base"))
    base, again = (CrossEncoder(str(tmp_path / "base"), activation_fn=nn.Identity()) for _ in range(2))
    untrained = base.predict(PAIRS)
    config = peft.LoraConfig(
        task_type="SEQ_CLS" if head else "CAUSAL_LM",
        target_modules=["q_proj", "v_proj"],
        modules_to_save=["score"] if head else None,
    )
    adapters = peft.get_peft_model(base[0].auto_model, config)
    trained = [name for name, parameter in base.named_parameters() if parameter.requires_grad]
    assert all("lora_" in name or "score.modules_to_save" in name for name in trained)
    assert sum("score" in name for name in trained) == int(head)
    whole = _step(ListMLELoss(base, mini_batch_size=1))[1]
    shared = _step(ListMLELoss(base, mini_batch_size=2, share_prefix=True, recompute=True))[1]
    torch.testing.assert_close(shared, whole, rtol=1e-3, atol=1e-5)
    with torch.no_grad():
        for parameter in base.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    expected = base.predict(PAIRS)
    assert abs(expected - untrained).max() > 0.1
    adapters.save_pretrained(str(tmp_path / "adapters"))
    peft.PeftModel.from_pretrained(again[0].auto_model, str(tmp_path / "adapters"))
    adapters.merge_and_unload()
    base.save_pretrained(str(tmp_path / "merged"))
    merged = CrossEncoder(str(tmp_path / "merged"), activation_fn=nn.Identity())
    for restored in (again, merged):
        torch.testing.assert_close(torch.tensor(restored.predict(PAIRS)), torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_training_gives_the_weights_of_training_on_whole_pairs(tmp_path: Path) -> None:
    def train(share_prefix: bool) -> list[Tensor]:
        model = _in_double(tiny_decoder(template=True))
        loss = ListMLELoss(model, share_prefix=share_prefix, mini_batch_size=1)
        arguments = CrossEncoderTrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=2,
            num_train_epochs=2,
            optim="sgd",
            learning_rate=1e-2,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            prompts="judge",
        )
        data = Dataset.from_dict({"query": QUERIES, "docs": DOCS, "labels": LABELS})
        CrossEncoderTrainer(
            model=model, args=arguments, train_dataset=data, loss=loss, data_collator=ListwiseDataCollator(loss)
        ).train()
        return [parameter.detach() for parameter in model.parameters()]

    torch.testing.assert_close(train(True), train(False), rtol=1e-9, atol=1e-9)


@pytest.fixture
def _process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_process_group")
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("find_unused", [False, True])
def test_distributed_training_reduces_the_same_gradient_once_a_step(recompute: bool, find_unused: bool) -> None:
    model = _in_double(tiny_decoder())
    expected = _step(ListMLELoss(model, mini_batch_size=1))[1]
    wrapper = DistributedDataParallel(model, find_unused_parameters=find_unused)
    reductions: list[int] = []
    wrapper.register_comm_hook(reductions, _count_reductions)
    loss = ListMLELoss(model, mini_batch_size=2, share_prefix=True, recompute=recompute)
    loss.model = wrapper  # type: ignore[assignment]  # as the trainer does
    found = {name.removeprefix("module."): gradient for name, gradient in _step(loss)[1].items()}
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert len(reductions) == 1, "one all-reduce a step, however many mini-batches"


@pytest.mark.usefixtures("_process_group")
def test_fsdp2_is_refused() -> None:
    model = tiny_decoder()
    loss = ListMLELoss(model, share_prefix=True)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(ValueError, match="does not run in FSDP2"):
        _step(loss)


def _count_reductions(reductions, bucket):  # type: ignore[no-untyped-def]  # torch checks for the types themselves
    reductions.append(bucket.index())
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0])
