"""Tiny random rerankers, built in code: a BERT with a head, one with set layers, a decoder that says yes or no."""

from __future__ import annotations

import string
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from sentence_transformers import CrossEncoder
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
)

from st_listwise import SetRankConfig, SetRankCrossEncoder

CHARACTERS = string.ascii_lowercase + string.digits + ".,?!'-:()"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tiny_bert(seed: int = 0, dropout: float = 0.0, num_labels: int = 1) -> CrossEncoder:
    """A BERT of 2 layers and width 32 in evaluation mode, with scores that differ visibly between texts."""
    model = CrossEncoder(str(_bert_folder(num_labels)), activation_fn=nn.Identity())
    return _randomised(model, seed, dropout)


def tiny_decoder(
    seed: int = 0, dropout: float = 0.0, template: bool = False, head: bool = False, **config: Any
) -> CrossEncoder:
    """A Qwen3-style decoder of 2 layers that is padded on the left; the score is logit(yes) - logit(no).

    ``template``: pairs pass a chat template with an instruction before the query and a turn after the document.
    ``head``: a head of sequence classification scores the last token.
    """
    folder = decoder_folder(template, head, **config)
    return _randomised(CrossEncoder(str(folder), activation_fn=nn.Identity()), seed, dropout)


def tiny_set(seed: int = 0, dropout: float = 0.0, **config: Any) -> SetRankCrossEncoder:
    """The same BERT without its head, under one block of set attention."""
    shape = SetRankConfig(**{"layers": 1, "heads": 4, "identity_start": False, "dropout": dropout, **config})
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # biases of the new layers, too
        model = SetRankCrossEncoder(str(_bert_folder(1)), set_rank=shape)
    return _randomised(model, seed, dropout)  # type: ignore[return-value]


def _randomised(model: CrossEncoder, seed: int, dropout: float) -> CrossEncoder:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = dropout
    return model.eval()


def _word_pieces() -> Tokenizer:
    vocab = SPECIAL + list(CHARACTERS) + [f"##{character}" for character in CHARACTERS]
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(vocab)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


@lru_cache
def _bert_folder(num_labels: int) -> Path:
    folder = Path(mkdtemp(prefix="tiny-bert-"))
    tokenizer = _word_pieces()
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
        num_labels=num_labels,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=128,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{key}_token": token for key, token in names.items()},
    ).save_pretrained(folder)
    return folder


CHAT_TEMPLATE = (
    "{%- set system = messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first -%}"
    "{%- set query = messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first -%}"
    "{%- set document = messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first -%}"
    "<turn>say yes or no.<end><turn>instruct: {{ system or 'find answers' }} query: {{ query }}"
    " document: {{ document }}<end><turn>answer: "
)


@lru_cache
def decoder_folder(template: bool = False, head: bool = False, **config: Any) -> Path:
    """Where a decoder is saved, with the shape of its configuration changed by ``config``."""
    folder = Path(mkdtemp(prefix="tiny-decoder-"))
    turns = ["<turn>", "<end>"] if template else []
    vocab = ["<pad>", "<unk>", "yes", "no", " ", *CHARACTERS, *turns]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocab)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    shape = {
        "vocab_size": len(vocab),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "eos_token_id": 0,
        "bos_token_id": None,
    }
    architecture = Qwen3ForSequenceClassification if head else Qwen3ForCausalLM
    architecture(Qwen3Config(**{**shape, **({"num_labels": 1} if head else {}), **config})).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=256,
        padding_side="left",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens=turns,
        chat_template=CHAT_TEMPLATE if template else None,
    ).save_pretrained(folder)
    return folder
