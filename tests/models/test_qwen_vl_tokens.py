"""Qwen's tokenizer and prompts: equal to the official ones on a tiny vocabulary."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from tests.models.qwen_vl_checkpoint import REFERENCE

from dpmtv.errors import ModelError
from dpmtv.models.qwen_vl.processor import CHATML, QwenVLProcessor
from dpmtv.models.qwen_vl.tokenizer import QwenTokenizer, byte_pairs

CASES = json.loads((REFERENCE / "cases_tiny_vocab.json").read_text("utf-8"))


@pytest.fixture
def tokenizer():
    return QwenTokenizer(REFERENCE / "qwen.tiktoken")


@pytest.mark.parametrize("case", CASES["encode"], ids=lambda case: case["text"][:20])
def test_texts_become_the_official_tokens_and_back(tokenizer, case):
    assert tokenizer(case["text"]).input_ids == case["ids"]
    assert tokenizer.decode(case["ids"]) == case["decode"]
    assert tokenizer.decode(case["ids"], skip_special_tokens=True) == case["decode_skip_special"]


def test_special_tokens_have_the_official_ids(tokenizer):
    assert len(tokenizer) == CASES["n_vocab"]
    assert {t: tokenizer.convert_tokens_to_ids(t) for t in CASES["special"]} == CASES["special"]


def test_a_conversation_is_rendered_as_officially(tokenizer):
    case = CASES["make_context_chatml"]
    ((asked, answered),) = case["history"]
    turns = [("user", [asked]), ("assistant", [answered]), ("user", [None, "hi"])]
    messages = [
        {
            "role": role,
            "content": [{"type": "text", "text": t} if t else {"type": "image"} for t in c],
        }
        for role, c in turns
    ]
    processor = QwenVLProcessor(tokenizer, 28, CHATML)
    text = processor.apply_chat_template(messages, chat_template=CHATML, add_generation_prompt=True)
    assert text == case["raw_text"].replace("<img>a.png", "Picture 1: <img>")
    assert tokenizer(case["raw_text"]).input_ids == case["ids"]
    two = CASES["from_list_format"]
    parts = [{"type": "image"} if "image" in p else {"type": "text", **p} for p in two["input"]]
    user = processor.apply_chat_template([{"role": "user", "content": parts}], chat_template=CHATML)
    assert two["text"].replace("a/b.png", "").replace("c.png", "") in user


@pytest.mark.parametrize("length", [253, 254, 255, 256, 257])
def test_how_long_a_path_may_be(tokenizer, picture, length):
    """The tokenizer takes 256 bytes; the official model finds the end of 254 at most."""
    text = f"<img>{'p' * length}</img>"
    known = {n: (verdict, tokens) for n, verdict, tokens in CASES["path_length_limit_tokenizer"]}
    verdict, tokens = known[length]
    if verdict != "ok":
        with pytest.raises(ValueError, match="257 bytes"):
            tokenizer(text)
        return
    assert len(tokenizer(text).input_ids) == tokens
    processor = QwenVLProcessor(tokenizer, 28, CHATML)
    if length > 254:
        with pytest.raises(ValueError, match="longer than 254 bytes"):
            processor([text], [[picture]], return_tensors="pt")
    else:
        assert processor([text], [[picture]], return_tensors="pt")["input_ids"].shape == (1, 258)


def test_broken_images_in_a_text_are_refused_but_a_model_may_generate_them(tokenizer):
    with pytest.raises(ValueError, match="without </img>"):
        tokenizer("a <img> b")
    image, end, a = *tokenizer.convert_tokens_to_ids(["<img>", "</img>"]), 64
    assert tokenizer.decode([a, image, a]) == "a<img>a"
    assert tokenizer.decode([a, image, a], skip_special_tokens=True) == "aa"
    assert tokenizer.decode([image, ord("x"), 300, end, a]) == "<img>x<|extra_29|></img>a"
    assert (
        tokenizer.decode([a, 487], skip_special_tokens=True) == "a"
    )  # the model's table is longer


def test_pairs_are_joined_by_rank_from_the_left():
    def slowly(word: bytes, ranks: dict[bytes, int]) -> list[int]:
        parts = [bytes([b]) for b in word]
        while True:
            pairs = [(ranks.get(a + b, 1e9), i) for i, (a, b) in enumerate(pairwise(parts))]
            rank, at = min(pairs, default=(1e9, 0))
            if rank == 1e9:
                return [ranks[p] for p in parts]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]

    draw = random.Random(0)
    for _ in range(300):
        tokens = [b"a", b"b", b"c"]
        for _ in range(12):
            tokens.append(draw.choice(tokens) + draw.choice(tokens))
        ranks = {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}
        word = bytes(draw.choices(b"abc", k=draw.randrange(1, 30)))
        want = [ranks[word]] if word in ranks else slowly(word, ranks)
        assert byte_pairs(word, ranks) == want


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines, b"nonsense"], "line 269: not a token"),
        (lambda lines: lines[1:], "line 1: rank 1 is out of order"),
        (lambda lines: [*lines, lines[0].split()[0] + b" 268"], "line 269: rank 268 is out of"),
        (lambda lines: lines[:200], "lacks some of the 256"),
    ],
)
def test_a_damaged_vocabulary_is_refused(tmp_path, change, message):
    lines = (REFERENCE / "qwen.tiktoken").read_bytes().splitlines()
    (tmp_path / "qwen.tiktoken").write_bytes(b"\n".join(change(lines)))
    with pytest.raises(ModelError, match=message):
        QwenTokenizer(tmp_path / "qwen.tiktoken")
