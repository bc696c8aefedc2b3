"""Qwen's tokenizer: byte pairs by rank from a tiktoken file, and images as spans of tokens."""

from __future__ import annotations

import base64
import unicodedata
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

import regex
from transformers import AddedToken, PreTrainedTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from dpmtv.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# That of OpenAI's cl100k_base, with digits one by one.
_WORDS = regex.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END_OF_TEXT = "<|endoftext|>"
_IMAGE, _IMAGE_END, _IMAGE_PAD = "<img>", "</img>", "<imgpad>"
_SPECIAL = (
    *(_END_OF_TEXT, "<|im_start|>", "<|im_end|>"),
    *(f"<|extra_{i}|>" for i in range(205)),
    *("<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>"),
    *(_IMAGE, _IMAGE_END, _IMAGE_PAD),
)
_CHARACTER: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
_Base: Any = PreTrainedTokenizer  # whose own types allow inputs that are never given here


class QwenTokenizer(_Base):  # type: ignore[misc]
    """Text ↔ ids, equal to those of the official tokenizer.

    An image is ``<img>``, ``image_tokens`` tokens, ``</img>``. A path between the two tags, as the
    official code takes it, becomes the *byte values* of its UTF-8 as ids, then padding; without
    one there is only padding. Models read neither.

    Args:
        vocab_file: ``qwen.tiktoken``: on each line a token's bytes in base64, and its rank.
        image_tokens: for each image, between its tags.

    Raises:
        ModelError: the file is damaged.
    """

    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012 - transformers' form

    def __init__(self, vocab_file: Path, image_tokens: int = 256, **more: Any) -> None:
        self.ranks = _read_ranks(vocab_file)
        self.image_tokens = image_tokens
        self._bytes = list(self.ranks)
        self._names = ["".join(_CHARACTER[b] for b in token) for token in self._bytes]
        self._ids = {name: rank for rank, name in enumerate(self._names)}
        first = len(self._names)
        super().__init__(
            added_tokens_decoder={
                first + i: AddedToken(token, special=True, normalized=False)
                for i, token in enumerate(_SPECIAL)
            },
            eos_token=_END_OF_TEXT,
            pad_token=_END_OF_TEXT,
            padding_side="left",
            **more,
        )

    @property
    def vocab_size(self) -> int:
        """Ranks; special tokens come after them."""
        return len(self._names)

    def get_vocab(self) -> dict[str, int]:
        """Tokens in GPT-2's spelling of bytes → ids."""
        special: dict[str, int] = self._added_tokens_encoder
        return self._ids | special

    def _convert_token_to_id(self, token: str) -> int | None:
        return self._ids.get(token)

    def _convert_id_to_token(self, index: int) -> str | None:
        return self._names[index] if index < len(self._names) else None

    # --- text → tokens ---------------------------------------------------------------------

    def tokenize(self, text: str, **more: Any) -> list[str]:
        """Tokens of a text, image spans filled up to their length.

        Raises:
            ValueError: an image is not closed, or has too long a path.
        """
        tokens: list[str] = super().tokenize(unicodedata.normalize("NFC", text), **more)
        filled: list[str] = []
        at = 0
        while at < len(tokens):
            filled.append(tokens[at])
            if tokens[at] == _IMAGE:
                if _IMAGE_END not in tokens[at:]:
                    raise ValueError(f"{_IMAGE} without {_IMAGE_END}")
                end = tokens.index(_IMAGE_END, at)
                filled += self._path(self.convert_tokens_to_ids(tokens[at + 1 : end]))
                at = end
            else:
                at += 1
        return filled

    def _path(self, ids: Sequence[int]) -> list[str]:
        """The tokens whose ids are a path's bytes, and padding."""
        path = b"".join(map(self._bytes_of, ids))
        if len(path) > self.image_tokens:
            raise ValueError(f"a path of {len(path)} bytes; {self.image_tokens} is the most")
        return [self._names[b] for b in path] + [_IMAGE_PAD] * (self.image_tokens - len(path))

    def _tokenize(self, text: str, **_more: Any) -> list[str]:
        words = (match.group().encode() for match in _WORDS.finditer(text))
        return [self._names[rank] for word in words for rank in byte_pairs(word, self.ranks)]

    # --- ids → text ------------------------------------------------------------------------

    def _bytes_of(self, token: int) -> bytes:
        if token < len(self._bytes):
            return self._bytes[token]
        special = token - len(self._bytes)
        return _SPECIAL[special].encode() if special < len(_SPECIAL) else b""

    def _decode(
        self, token_ids: int | list[int], skip_special_tokens: bool = False, **_more: Any
    ) -> str:
        """An image's path stays, between its tags or without them; broken characters become �.

        The official tokenizer fails on an image that is not closed, which a model may generate.
        """
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        image, image_end, pad = self.convert_tokens_to_ids([_IMAGE, _IMAGE_END, _IMAGE_PAD])
        parts: list[bytes] = []
        ends = 0  # of the image that we are in
        for place, token in enumerate(ids):
            if token == image and image_end in ids[place:]:
                ends = ids.index(image_end, place)
            inside = place < ends and token != image
            if inside and token < 256:
                parts.append(bytes([token]))
            elif token < len(self._bytes) or not (skip_special_tokens or (inside and token == pad)):
                parts.append(self._bytes_of(token))
        return b"".join(parts).decode("utf-8", "replace")


def byte_pairs(word: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """A word's tokens: the neighbours of the lowest rank are joined, the left ones first.

    Like tiktoken, a word that is a token itself is this token. Every pair that makes a token
    counts, which lists of merges, as in other tokenizers, do not say for all of them.
    """
    if word in ranks:
        return [ranks[word]]
    size = len(word)
    end = list(range(1, size + 1))  # where the part that starts here ends; 0 if none does
    before = list(range(-1, size - 1))  # where the part to the left starts

    def joined(start: int) -> tuple[int, int, int] | None:
        """The part that starts here with the one after it: rank, start, end."""
        if end[start] == size:
            return None
        rank = ranks.get(word[start : end[end[start]]])
        return None if rank is None else (rank, start, end[end[start]])

    waiting = [pair for start in range(size) if (pair := joined(start))]
    heapify(waiting)
    while waiting:
        _, start, stop = heappop(waiting)
        middle = end[start]
        if not middle or middle >= stop or end[middle] != stop:
            continue  # one of the two has been joined to another
        end[start], end[middle] = stop, 0
        if stop < size:
            before[stop] = start
        for left in (before[start], start):
            if left >= 0 and (pair := joined(left)):
                heappush(waiting, pair)
    return [ranks[word[start : end[start]]] for start in range(size) if end[start]]


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Tokens in the order of their ranks.

    Raises:
        ModelError: not such a file.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines()):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise ModelError(f"{path.name}, line {number + 1}: not a token and its rank") from error
        if int(rank) != number or len(ranks) != number + 1:
            raise ModelError(f"{path.name}, line {number + 1}: rank {int(rank)} is out of order")
    if {bytes([b]) for b in range(256)} - ranks.keys():
        raise ModelError(f"{path.name} lacks some of the 256 single bytes")
    return ranks
