"""VILA-1.5 against what the official code computes on tests/data/vila15_tiny."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

from dpmtv.models.adapters import VisionLanguageModel, load_model
from dpmtv.models.hooks import record_heads
from dpmtv.models.mask_loss import MaskLoss, whole_pass_losses
from dpmtv.models.vila.processing import IMAGE
from dpmtv.types import Demonstration, Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Iterator

TINY = Path(__file__).parents[1] / "data" / "vila15_tiny"
GIVEN, WANTED = (np.load(TINY / f"{name}.npz") for name in ("inputs", "expected"))
PROMPTS = json.loads((TINY / "prompts.json").read_text("utf-8"))
PICTURES = [Image.fromarray(GIVEN[f"image{i}_uint8"]) for i in range(3)]
PER_IMAGE = 16
MARK = -200


@pytest.fixture(scope="module")
def vila() -> VisionLanguageModel:
    return load_model(TINY, max_new_tokens=4)


def near(ours: torch.Tensor, name: str) -> None:
    wanted = WANTED[name]
    assert tuple(ours.shape) == wanted.shape
    assert np.abs(ours.numpy() - wanted).max() < 1e-4


def expanded(vila: VisionLanguageModel, ids: np.ndarray) -> torch.Tensor:
    """The reference has one mark an image, ours as many as an image has embeddings."""
    place = vila.model.config.image_token_id
    rows = [[i for i in row for i in ([i] if i != MARK else [place] * PER_IMAGE)] for row in ids]
    return torch.tensor(rows)


def inputs(vila: VisionLanguageModel, example: str) -> dict[str, torch.Tensor]:
    given = {"input_ids": expanded(vila, GIVEN[f"{example}_input_ids"])}
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    pictures = GIVEN[f"{example}_image_index"]
    if len(pictures):
        given["pixel_values"] = torch.from_numpy(GIVEN["pixel_values"][pictures])
    return given


# --- arithmetic --------------------------------------------------------------------------------


def test_pictures_are_prepared_as_the_official_code_does(vila):
    batch = vila.processor([IMAGE * 3], [PICTURES])
    assert np.array_equal(batch["pixel_values"].numpy(), GIVEN["pixel_values"])


@torch.inference_mode()
def test_tower_and_projector(vila):
    tower, pixels = vila.model.vision_tower, torch.from_numpy(GIVEN["pixel_values"])
    near(tower.embeddings(pixels), "vision_embeddings_output")
    near(tower(pixels, output_hidden_states=True).hidden_states[-2], "vision_tower_output")
    near(vila.model.image_features(pixels), "image_features")


@torch.inference_mode()
@pytest.mark.parametrize("side", ["odd", "even"])
def test_projector_alone(vila, side):
    given = torch.from_numpy(GIVEN[f"projector_{side}_input"])
    near(vila.model.mm_projector(given), f"projector_{side}_output")
    assert vila.model.mm_projector.tokens_of(given.shape[1]) == 9


@torch.inference_mode()
@pytest.mark.parametrize("example", ["one", "three", "text"])
def test_language_model(vila, example):
    given = inputs(vila, example)
    near(
        vila.model.embed(given["input_ids"], given.get("pixel_values")), f"{example}_inputs_embeds"
    )
    with record_heads(vila.projections) as heads:
        out = vila.model(**given, output_hidden_states=True)
    near(torch.stack(heads), f"{example}_o_proj_input_last")
    near(out.hidden_states[-1], f"{example}_last_hidden_state")
    near(out.logits[:, -1], f"{example}_logits_last")
    ids = vila.model.generate(**given, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert ids[:, given["input_ids"].shape[1] :].tolist() == WANTED[f"{example}_greedy8"].tolist()


@torch.inference_mode()
def test_batches_padded_on_either_side(vila):
    pad, pixels = vila.tokenizer.pad_token_id, torch.from_numpy(GIVEN["pixel_values"])
    rows = [expanded(vila, ids[mask == 1][None])[0] for ids, mask in _reference_rows()]
    length = max(map(len, rows))
    for left in (False, True):
        ids, mask = torch.full((2, length), pad), torch.zeros(2, length, dtype=torch.long)
        for row, known in enumerate(rows):
            where = slice(length - len(known), None) if left else slice(0, len(known))
            ids[row, where], mask[row, where] = known, 1
        assert left or np.array_equal(mask.numpy(), WANTED["batch_spliced_attention_mask"])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        with all_tokens(vila.projections) as seen:
            out = vila.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                pixel_values=pixels[GIVEN["batch_image_index"]],
            )
        last = torch.tensor([length - 1 if left else len(known) - 1 for known in rows])
        near(out.logits[range(2), last], "batch_logits_at_last_valid")
        near(torch.stack(seen)[:, range(2), last], "batch_o_proj_input_at_last_valid")


@contextmanager
def all_tokens(projections: list[torch.nn.Module]) -> Iterator[list[torch.Tensor]]:
    """What every projection receives, in the order of the layers."""
    seen: list[torch.Tensor] = []
    handles = [
        p.register_forward_pre_hook(lambda _module, args: seen.append(args[0])) for p in projections
    ]
    yield seen
    for handle in handles:
        handle.remove()


def _reference_rows() -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(GIVEN["batch_input_ids"], GIVEN["batch_attention_mask"], strict=True))


def test_images_and_places_must_be_as_many(vila):
    given = inputs(vila, "three")
    with pytest.raises(ValueError, match="places for 48 image embeddings, the images have 32"):
        vila.model(**given | {"pixel_values": given["pixel_values"][:2]})


def test_halves(vila):
    half = load_model(TINY, dtype="bfloat16")
    prompt = Prompt((), Query(PICTURES[0], "What is this?"))
    ours, want = half.last_token_heads(prompt), vila.last_token_heads(prompt)
    assert half.dtype == "bfloat16"
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    assert np.dot(ours, want) > 0.99 * np.linalg.norm(ours) * np.linalg.norm(want)


# --- prompts -----------------------------------------------------------------------------------


def test_ids_are_those_of_the_official_tokenisation(vila):
    for example, known in PROMPTS.items():
        pictures = [PICTURES[i] for i in GIVEN[f"{example}_image_index"]]
        batch = vila.processor([known["prompt"]], [pictures])
        ids = expanded(vila, np.array([known["input_ids"]]))
        assert torch.equal(batch["input_ids"], ids)
        assert bool(batch["attention_mask"].all())
        assert ("pixel_values" in batch) == bool(pictures)


def test_the_conversation_is_llama_3(vila):
    asked = {"type": "text", "text": " Describe the image."}
    messages = [{"role": "user", "content": [{"type": "image"}, asked]}]
    text = vila.processor.apply_chat_template(messages, add_generation_prompt=True)
    # The tiny tokenizer begins every text, and the template begins, too: two begin tokens.
    assert text == "<|begin_of_text|>" + PROMPTS["one"]["prompt"]
    batch = vila.processor([text], [PICTURES[:1]], add_special_tokens=False)
    assert torch.equal(batch["input_ids"], inputs(vila, "one")["input_ids"])


def demonstrations(count: int) -> Prompt:
    shown = tuple(
        Demonstration(PICTURES[i % 3], "What is this?", f"thing {i}") for i in range(count)
    )
    return Prompt(shown, Query(PICTURES[2], "What is this?"))


def test_demonstrations_are_turns_with_their_images_in_place(vila):
    text = vila.render(demonstrations(2))
    user = "<|start_header_id|>user<|end_header_id|>\n\n"
    answer = "<|start_header_id|>system<|end_header_id|>\n\n"
    turn = f"{user}<image>\nWhat is this?\n{vila.instruction}<|end_of_text|>{answer}"
    assert text.endswith(f"{turn}thing 0<|end_of_text|>{turn}thing 1<|end_of_text|>{turn}")
    answered = vila.answer_ids(demonstrations(1), "red")
    assert vila.tokenizer.decode(answered) == "red<|end_of_text|>"
    assert answered[-1] in vila.end_ids


def test_a_long_prompt_is_refused_not_cut(vila):
    long = Prompt((), Query(PICTURES[0], "why " * 1100))
    with pytest.raises(ValueError, match="more than the 4096 that the model takes"):
        vila.inputs([long])
    two = Prompt((), Query(PICTURES[0], "What is <image>?"))
    with pytest.raises(ValueError, match="more or less often than it has images"):
        vila.inputs([two])


def test_a_batch_is_padded_on_the_left(vila):
    batch = vila.inputs([demonstrations(0), demonstrations(2)])
    short = vila.inputs([demonstrations(0)])["input_ids"][0]
    assert torch.equal(batch["input_ids"][0, -len(short) :], short)
    assert batch["attention_mask"].sum(1).tolist() == [len(short), batch["input_ids"].shape[1]]
    assert len(batch["pixel_values"]) == 4


# --- with the project's own passes -------------------------------------------------------------


def test_patched_in_a_batch_as_alone(vila):
    prompts = [demonstrations(0), demonstrations(2)]
    values = vila.last_token_heads(demonstrations(3)) * 2
    heads = np.random.default_rng(0).random(vila.layout.n_heads) < 0.5
    with vila.patched(values, heads):
        together = vila.generate(prompts)
        alone = [vila.generate([p])[0] for p in prompts]
        batch, _ = vila.forward(vila.inputs(prompts), logits_to_keep=1)
        single = torch.cat([vila.forward(vila.inputs([p]), logits_to_keep=1)[0] for p in prompts])
    assert together == alone
    assert (batch - single).abs().max() < 1e-4
    plain, _ = vila.forward(vila.inputs(prompts), logits_to_keep=1)
    assert (batch - plain).abs().max() > 1e-2


def test_kept_prefixes_equal_whole_passes(vila):
    prompts = [demonstrations(1), demonstrations(0)]
    vectors = [vila.last_token_heads(p) + 0.5 for p in prompts]
    masks = np.random.default_rng(0).random((3, vila.layout.n_heads)) < 0.5
    loss = MaskLoss(vila, prompts, ["red", "two"], vectors)
    for at in range(2):
        whole = whole_pass_losses(
            vila, prompts[at], loss.answers[at], vila.by_layer(vectors[at]), masks, loss.patch
        ).numpy()
        assert np.abs(loss(masks, at) - whole).max() < 1e-4
        assert np.ptp(whole) > 1e-3
    assert loss.keeps_prefixes
