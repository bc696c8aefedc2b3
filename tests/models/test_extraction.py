"""One chunk, one pass: isolation, null chunks, preflight."""

from __future__ import annotations

import contextlib
import logging
import warnings

import numpy as np
import pytest
from PIL import Image

from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.data.prompts import chunk_prompt
from dpmtv.errors import ModelError
from dpmtv.models import extraction
from dpmtv.models.extraction import chunk_activations, preflight
from dpmtv.types import Demonstration, Prompt


@pytest.fixture
def worlds(data):
    """Two lists of chunks that share every other chunk; the rest differ in length and content."""
    digits = read_demonstrations(data / "tasks/digit-french/private.jsonl")[:80]
    shapes = read_demonstrations(data / "tasks/presence-french/private.jsonl")[:80]
    one = [chunk_prompt(digits[i * 5 : i * 5 + 5]) for i in range(8)]
    two = list(one)
    for place in range(1, 8, 2):
        two[place] = chunk_prompt(shapes[place * 5 : place * 5 + 2 + place // 2])
    return one, two


def assert_isolated(extract, worlds) -> None:
    one, two = (list(extract(world)) for world in worlds)
    for place in range(0, 8, 2):
        assert np.array_equal(one[place], two[place]), f"chunk {place} felt its neighbours"
    for place in range(1, 8, 2):
        assert not np.array_equal(one[place], two[place])


def test_a_chunk_is_bit_identical_whatever_the_others_hold(model, worlds):
    assert_isolated(lambda prompts: chunk_activations(model, prompts), worlds)


def test_planted_coupling_turns_the_isolation_check_red(model, worlds):
    def batched(prompts):
        """What must never be done: two private chunks in one padded batch."""
        from dpmtv.models.hooks import record_heads

        for start in range(0, len(prompts), 2):
            with record_heads(model.projections) as records:
                model.forward(model.inputs(prompts[start : start + 2]))
            yield from np.concatenate([r.numpy() for r in records], axis=1)

    with pytest.raises(AssertionError, match="felt its neighbours"):
        assert_isolated(batched, worlds)


def test_whatever_fails_in_a_chunk_makes_that_chunk_null(model, worlds, tmp_path, picture):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    bad_image = chunk_prompt([Demonstration(broken, "q", "a"), Demonstration(picture, "q", "a")])
    token = chunk_prompt(  # an image placeholder inside a question: more places than images
        [Demonstration(picture, "<image>", "a"), Demonstration(picture, "q", "a")]
    )
    good = worlds[0][0]
    alone = next(chunk_activations(model, [good]))
    results = list(chunk_activations(model, [bad_image, good, None, token, good]))
    assert [r is None for r in results] == [True, False, True, True, False]
    assert np.array_equal(results[1], alone)
    assert np.array_equal(results[4], alone)


def test_libraries_tell_nothing_of_a_chunk(model, worlds, monkeypatch, caplog, capfd):
    """Tokenizers warn with a prompt's length, image readers with metadata."""
    plain = type(model).inputs

    def talkative(self, prompts):
        logging.getLogger("transformers.tokenization").error("3000 > 1024 tokens")
        warnings.warn("corrupt EXIF of scan-17.png", stacklevel=1)
        return plain(self, prompts)

    monkeypatch.setattr(type(model), "inputs", talkative)
    (values,) = chunk_activations(model, worlds[0][:1])
    assert values is not None
    assert caplog.text + "".join(capfd.readouterr()) == ""
    logging.getLogger("dpmtv").error("heard again")
    assert "heard again" in caplog.text


def test_preflight_passes_and_finds_a_broken_setup(model, monkeypatch):
    preflight(model, shots=2)

    def remembers(self, prompt, seen=[]):  # noqa: B006 - a model that keeps the longest prompt
        seen.append(len(prompt.demonstrations))
        return np.full(self.layout.size, float(max(seen)))

    def crashes(self, prompt):
        raise TypeError("unexpected keyword argument 'logits_to_keep'")

    for broken, message in (
        (lambda self, _: np.full(self.layout.size, np.nan), "not finite"),
        (remembers, "remembers"),
        (crashes, "logits_to_keep"),
    ):
        monkeypatch.setattr(type(model), "last_token_heads", broken)
        with pytest.raises(ModelError, match=message):
            preflight(model, shots=2)


def test_a_panic_in_a_library_makes_the_chunk_null_and_an_interrupt_stops(
    model, worlds, monkeypatch
):
    class Panic(BaseException):
        """As PyO3 raises for a panic in Rust."""

    raised = [Panic("c4n4ry")]

    def fail(self, _prompt):
        raise raised[0]

    monkeypatch.setattr(type(model), "last_token_heads", fail)
    assert list(chunk_activations(model, worlds[0][:2])) == [None, None]
    raised[0] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        list(chunk_activations(model, worlds[0][:1]))


def test_extraction_is_lazy_and_single(model, worlds, monkeypatch):
    """One prompt a forward pass: the model never sees two chunks together."""
    sizes = []
    plain = type(model).inputs

    def spy(self, prompts):
        sizes.append(len(prompts))
        return plain(self, prompts)

    monkeypatch.setattr(type(model), "inputs", spy)
    list(extraction.chunk_activations(model, worlds[0]))
    assert sizes == [1] * 8


def test_libraries_in_c_say_nothing_either(model, tmp_path, capfd):
    """libtiff writes bytes of a broken picture to the process's standard error."""
    path = tmp_path / "broken.tif"
    Image.new("RGB", (64, 64), "red").save(path, compression="jpeg")
    data = bytearray(path.read_bytes())
    place = data.index(b"\xff\xd8")
    data[place : place + 40] = b"c4n4ry" * 6 + b"c4n4"
    path.write_bytes(bytes(data))
    with contextlib.suppress(Exception):
        Image.open(path).load()
    assert capfd.readouterr().err, "or the picture is not broken enough to show anything"
    shown = Demonstration(path, "What is it?", "red")
    assert list(chunk_activations(model, [Prompt((shown,), shown.query)])) == [None]
    assert capfd.readouterr() == ("", "")
