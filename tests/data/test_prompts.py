from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmtv.data.demonstrations import BadRow
from dpmtv.data.prompts import (
    BRIEF,
    INSTRUCTIONS,
    chunk_prompt,
    instruction_for,
    prompt_images,
    prompt_trap,
    template_sha256,
    to_messages,
    to_text,
)
from dpmtv.types import Demonstration, Prompt, Query

A, B, C = (Demonstration(f"{x}.png", f"question {x}?", f"answer {x}") for x in "abc")
BAD = BadRow(1, "empty line")
PUBLIC = Query("public.png", "public question?")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([A, B, C], Prompt((A, B), C.query)),
        ([A, BAD, C], Prompt((A,), C.query)),
        ([A, B, BAD], Prompt((A,), B.query)),
        ([BAD, B, BAD, C, BAD], Prompt((B,), C.query)),
        ([A, BAD], None),
        ([BAD, A], None),
        ([A], None),
        ([BAD, BAD], None),
        ([], None),
    ],
)
def test_the_last_good_row_is_asked(rows, expected):
    assert chunk_prompt(rows) == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([A], Prompt((A,), PUBLIC)),
        ([A, B], Prompt((A, B), PUBLIC)),
        ([BAD, B], Prompt((B,), PUBLIC)),
        ([BAD], None),
        ([], None),
    ],
)
def test_a_public_query_leaves_all_good_rows_as_demonstrations(rows, expected):
    assert chunk_prompt(rows, PUBLIC) == expected


def test_the_rows_are_not_changed():
    rows = [A, BAD, B]
    chunk_prompt(rows)
    assert rows == [A, BAD, B]


def test_messages_alternate_and_end_with_the_query():
    assert to_messages(Prompt((A,), PUBLIC), "One word.") == [
        {
            "role": "user",
            "content": [{"type": "image"}, {"type": "text", "text": "question a?\nOne word."}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "answer a"}]},
        {
            "role": "user",
            "content": [{"type": "image"}, {"type": "text", "text": "public question?\nOne word."}],
        },
    ]


def test_a_zero_shot_prompt_is_one_user_turn():
    assert to_messages(Prompt((), PUBLIC)) == [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": PUBLIC.question}]}
    ]


def test_text_form():
    assert to_text(Prompt((A,), PUBLIC), "<image>") == (
        "<image>Question: question a? Answer: answer a\n<image>Question: public question? Answer:"
    )
    assert to_text(Prompt((), PUBLIC), "<i>", "One word.") == (
        "<i>Question: public question?\nOne word. Answer:"
    )


spaces = st.text(" \t\n\r ", max_size=3)


@given(spaces, spaces)
def test_white_space_at_the_ends_changes_nothing(before, after):
    def padded(text: str) -> str:
        return before + text + after

    clean = Prompt((A,), PUBLIC)
    demonstration = Demonstration(A.image, padded(A.question), padded(A.answer))
    prompt = Prompt((demonstration,), Query(PUBLIC.image, padded(PUBLIC.question)))
    for instruction in ("", "One word."):
        assert to_messages(prompt, padded(instruction)) == to_messages(clean, instruction)
        assert to_text(prompt, "<i>", padded(instruction)) == to_text(clean, "<i>", instruction)
        assert template_sha256(padded(instruction), "t") == template_sha256(instruction, "t")


def test_white_space_inside_is_kept():
    query = Query("x.png", " two\n lines ")
    assert to_messages(Prompt((), query))[0]["content"][1]["text"] == "two\n lines"


@given(st.integers(0, 4))
def test_there_is_one_place_for_each_image_in_order(shots):
    shown = tuple(Demonstration(f"{i}.png", "q", "a") for i in range(shots))
    prompt = Prompt(shown, PUBLIC)
    images = prompt_images(prompt)
    assert images == [f"{i}.png" for i in range(shots)] + ["public.png"]
    parts = [part for message in to_messages(prompt) for part in message["content"]]
    assert parts.count({"type": "image"}) == len(images)
    assert to_text(prompt, "<image>").count("<image>") == len(images)


def test_template_hashes_are_pinned():
    # A vector's certificate names its prompt by this hash: the format may not drift unnoticed.
    assert template_sha256("", None) == (
        "c8fe8e14c4177fd2091a16c0fc63f202f4782a311005b71552ee56d6b79497a9"
    )
    assert template_sha256("Answer in one word.", "{{ messages }}") == (
        "6f5f18e8d1916304c051da3861fbe56832d08114e24c6ec2bd373dfd1811fa9b"
    )


def test_template_hash_sees_instruction_template_and_form():
    hashes = {
        template_sha256(instruction, template)
        for instruction in ("", "One word.", "Two words.")
        for template in (None, "", "{{ messages }}", "{{ messages }} ")
    }
    assert len(hashes) == 12


def test_a_prompt_shows_no_content():
    assert "question" not in repr(Prompt((A, B), PUBLIC)).replace("question=", "")
    assert ".png" not in repr(Prompt((A, B), PUBLIC))


@pytest.mark.parametrize(
    ("rendered", "trapped"),
    [
        ("Q? Answer:", False),
        ("USER: Q? ASSISTANT:", False),
        ("<|im_start|>assistant\n", False),
        ("USER: Q? ASSISTANT: ", True),
        ("Q? Answer:\t", True),
    ],
)
def test_a_space_before_the_answer_is_a_trap(rendered, trapped):
    assert (prompt_trap(rendered) is not None) == trapped


def test_every_family_has_its_answer_instruction_in_one_table():
    assert instruction_for("smolvlm") == "Give a very brief answer."
    assert instruction_for("paligemma") == ""
    assert instruction_for("a family of tomorrow") == instruction_for("llava") == BRIEF
    for line in {BRIEF, *INSTRUCTIONS.values()}:
        assert line == line.strip()
        assert not line or line.endswith(".")
