"""The tiny Idefics3: its tokenizer, processor and configuration, made from nothing."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    PreTrainedTokenizerFast,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from conventions import CONVENTIONS, QUESTIONS
from words import DEV_HELD_OUT, HELD_OUT, POOL

END = "<end_of_utterance>"
SPECIAL = ["<pad>", "<bos>", "<eos>", "<image>", "<fake_token_around_image>", "<global-img>", END]
IMAGE_TOKENS = 4

# One demonstration reads "<image>question Answer: answer<end_of_utterance>".
CHAT_TEMPLATE = (
    "<bos>{% for message in messages %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}"
    "{% if message['role'] == 'user' %}{{ part['text'] }} Answer:{% else %} {{ part['text'] }}"
    "{% endif %}{% endif %}{% endfor %}"
    "{% if message['role'] == 'assistant' %}<end_of_utterance>{% endif %}"
    "{% endfor %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE whose merges go on until each word of the suite and the pool is one token.

    Answers are trained with their leading space, or they would not merge.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=10_000,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [f"{q} One of: a, b. Answer:" for family in QUESTIONS.values() for q in family]
    texts += [f" {answer}" for c in CONVENTIONS for answer in c.answers]
    texts += [f" {word}" for word in (*POOL, *HELD_OUT, *DEV_HELD_OUT)]
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def make_processor(tokenizer: PreTrainedTokenizerFast) -> Idefics3Processor:
    """No splitting, 64 pixels, mean and deviation one half."""
    images = Idefics3ImageProcessorPil(
        do_image_splitting=False,
        size={"longest_edge": 64},
        max_image_size={"longest_edge": 64},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return Idefics3Processor(
        images, tokenizer, image_seq_len=IMAGE_TOKENS, chat_template=CHAT_TEMPLATE
    )


def make_model(
    tokenizer: PreTrainedTokenizerFast, head_dim: int = 16
) -> Idefics3ForConditionalGeneration:
    """About two million parameters: 4 vision and 6 text layers, 8 heads of 16.

    With wider heads the residual stream stays as it is, and more coordinates are released.
    """
    ids = dict(zip(SPECIAL, tokenizer.convert_tokens_to_ids(SPECIAL), strict=True))
    config = Idefics3Config(
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "image_size": 64,
            "patch_size": 8,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "head_dim": head_dim,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": True,
            "pad_token_id": ids["<pad>"],
            "bos_token_id": ids["<bos>"],
            "eos_token_id": ids[END],
        },
        scale_factor=4,
        image_token_id=ids["<image>"],
        pad_token_id=ids["<pad>"],
        tie_word_embeddings=True,
    )
    model = Idefics3ForConditionalGeneration(config)
    _let_copy(model)
    model.generation_config.pad_token_id = ids["<pad>"]
    model.generation_config.bos_token_id = ids["<bos>"]
    model.generation_config.eos_token_id = ids[END]
    return model


def _let_copy(model: Idefics3ForConditionalGeneration) -> None:
    """Start with large embeddings, and with heads 4-7 of the third layer as copiers.

    What such a head looks at, it writes: its value and output projections are a random
    orthonormal pair, so that copying a word from a demonstration needs the looking alone. And a
    word must stand out from what the first layers add to it, while their readers start wide
    enough to see the picture. From a plain start a thousand words take far longer.
    """
    text = model.model.text_model
    attention = text.layers[2].self_attn
    hidden, width = attention.o_proj.weight.shape
    half = slice(width // 2, width)
    shape = (hidden, width // 2)
    basis = torch.linalg.qr(torch.randn(max(shape), min(shape)))[0]
    basis = basis if shape[0] == max(shape) else basis.T
    readers = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    with torch.no_grad():
        text.embed_tokens.weight.normal_(std=0.15)
        for layer in text.layers:
            for name in (*readers, "mlp.gate_proj", "mlp.up_proj"):
                layer.get_submodule(name).weight.normal_(std=0.06)
        attention.v_proj.weight[half] = 1.5 * basis.T
        attention.o_proj.weight[:, half] = 1.5 * basis
