"""From a chunk's rows to what a model is asked."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from dpmtv.data.values import composed
from dpmtv.types import Demonstration, Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpmtv.data.demonstrations import BadRow
    from dpmtv.types import ImageSource

BRIEF = "Answer the question using a single word or phrase."
"""The line of LLaVA-1.5 (Liu et al., arXiv 2310.03744), which most models have seen in training."""

_VERY_BRIEF = "Give a very brief answer."
_SHORT_WORDS = "Please try to answer the question with short words or phrases if possible."

# Hugging Face model type → the line that ends a question where a short answer is wanted, as in
# VLMEvalKit's prompts for these models. Without such a line chat models answer in sentences,
# which costs tens of points on short-answer benchmarks. "" is for models without one.
INSTRUCTIONS = {
    "idefics2": _VERY_BRIEF,
    "idefics3": _VERY_BRIEF,
    "smolvlm": _VERY_BRIEF,
    "qwen2_vl": _SHORT_WORDS,
    "qwen2_5_vl": _SHORT_WORDS,
    "qwen3_vl": _SHORT_WORDS,
    "qwen3_vl_moe": _SHORT_WORDS,
    "blip-2": "",
    "git": "",
    "kosmos-2": "",
    "paligemma": "",
}


def instruction_for(model_type: str) -> str:
    """The answer instruction of a model family; `BRIEF` for those not in the table."""
    return INSTRUCTIONS.get(model_type, BRIEF)


def prompt_trap(rendered: str) -> str | None:
    """What is wrong with a prompt that is about to be answered, or None.

    White space between the prompt and the answer belongs to the answer's first token: a prompt
    that ends with it moves accuracies by many points.
    """
    if rendered.endswith((" ", "\t")):
        return "the prompt ends with a space, which belongs to the answer's first token"
    return None


def tidy(text: str) -> str:
    """A question or an answer as it reaches the model: composed letters, no white space around.

    One text in two Unicode forms is two to a tokenizer; white space at the ends changes the tokens
    at the joint. Either costs accuracy.
    """
    return composed(text).strip()


def chunk_prompt(
    rows: Sequence[Demonstration | BadRow], query: Query | None = None
) -> Prompt | None:
    """The prompt of one chunk, made of this chunk alone.

    Bad rows are left out. Without ``query`` the last good row is asked and the good rows before
    it are shown, as in the paper (Ngong, Reza and Near 2026, arXiv 2603.04894); with a public
    ``query`` all good rows are shown.

    *Guarantee.* A function of the chunk's rows and public values: nothing outside the chunk
    replaces what is bad in it.

    Returns:
        None, the null chunk, without at least one demonstration and a query.
    """
    good = [row for row in rows if isinstance(row, Demonstration)]
    if query is None and good:
        query = good.pop().query
    if query is None or not good:
        return None
    return Prompt(tuple(good), query)


def to_messages(prompt: Prompt, instruction: str = "") -> list[dict[str, Any]]:
    """Chat messages in the Hugging Face form, with a place for each of `prompt_images`.

    Every user turn is its images, then the question, with the instruction on its own line; every
    demonstration's answer is an assistant turn; the query is the last user turn.
    """
    messages = []
    for demonstration in prompt.demonstrations:
        messages.append(_user(demonstration.query, instruction))
        answer = {"type": "text", "text": tidy(demonstration.answer)}
        messages.append({"role": "assistant", "content": [answer]})
    return [*messages, _user(prompt.query, instruction)]


def to_text(prompt: Prompt, image_token: str, instruction: str = "") -> str:
    """The same prompt as one string, for processors without a chat template."""
    shown = "".join(
        f"{_places(d.query, image_token)}Question: {_asked(d.query, instruction)} "
        f"Answer: {tidy(d.answer)}\n"
        for d in prompt.demonstrations
    )
    places = _places(prompt.query, image_token)
    return f"{shown}{places}Question: {_asked(prompt.query, instruction)} Answer:"


def prompt_images(prompt: Prompt) -> list[ImageSource]:
    """The images of a prompt in the order of their places."""
    queries = [*(d.query for d in prompt.demonstrations), prompt.query]
    return [image for query in queries for image in query.images]


def template_sha256(instruction: str, chat_template: str | None) -> str:
    """Name a prompt format, for certificates: a vector is worth little under another one.

    Args:
        instruction: as given to `to_messages`.
        chat_template: source text of the processor's template, None where `to_text` is used.

    Returns:
        Hex SHA-256 of a fixed public example in this format, together with the template.
    """
    shown = Demonstration("", "What is shown?", "a circle")
    example = Prompt((shown,), Query("", "Which colour is it?"))
    if chat_template is None:
        named: list[Any] = [to_text(example, "<image>", instruction)]
    else:
        named = [to_messages(example, instruction), chat_template]
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


def _user(query: Query, instruction: str) -> dict[str, Any]:
    text = {"type": "text", "text": _asked(query, instruction)}
    return {"role": "user", "content": [*({"type": "image"} for _ in query.images), text]}


def _places(query: Query, image_token: str) -> str:
    return image_token * len(query.images)


def _asked(query: Query, instruction: str) -> str:
    return f"{tidy(query.question)}\n{instruction.strip()}".strip()
