"""Load any Hugging Face vision-language model and find its attention heads."""

from __future__ import annotations

import hashlib
import inspect
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import nn

from dpmtv.data.images import load_image
from dpmtv.data.prompts import (
    instruction_for,
    prompt_images,
    prompt_trap,
    template_sha256,
    tidy,
    to_messages,
    to_text,
)
from dpmtv.errors import InternalError, ModelError
from dpmtv.models.hooks import last_token, patch_heads, record_heads
from dpmtv.models.loading import hash_files, load_parts
from dpmtv.models.processors import processed
from dpmtv.models.projections import find_projections, head_layout
from dpmtv.privacy.certificate import ModelIdentity
from dpmtv.types import Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from jaxtyping import Bool, Float
    from torch import Tensor

_DTYPES: dict[torch.dtype, Literal["float32", "float16", "bfloat16"]] = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}

# Mllama's text before the first picture looks at all of a row's pictures, padded ones too.
_NEVER_BATCHED = {"mllama"}


@dataclass(frozen=True)
class PreparedQueries:
    """Tokenised batches of zero-shot prompts, reusable over many vectors."""

    batches: tuple[Mapping[str, Tensor], ...]


class VisionLanguageModel:
    """A frozen vision-language model, its processor, and hooks on every attention head.

    Made by :func:`load_model`. Activations and vectors are flat: layer after layer, head after
    head, as :class:`~dpmtv.types.HeadLayout` says.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        *,
        hub_id: str | None = None,
        revision: str | None = None,
        weights_sha256: str | None = None,
        projections: str | None = None,
        instruction: str = "",
        max_new_tokens: int = 20,
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.processor = processor
        self.instruction = instruction
        self.max_new_tokens = max_new_tokens
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self.tokenizer.padding_side = "left"
        self.projections = find_projections(model, projections)
        self.layout = head_layout(model, self.projections)
        architecture = type(model).__name__
        if projections:  # other modules, other heads: a vector for them must fit no other choice
            chosen = hashlib.sha256(projections.encode()).hexdigest()[:16]
            architecture += f"_projections_{chosen}"
        self.identity = ModelIdentity(
            id=hub_id,
            revision=revision,
            weights_sha256=weights_sha256,
            architecture=architecture,
            heads=self.layout.heads,
            head_dims=self.layout.head_dims,
        )
        weights = model.get_decoder().parameters()
        self._weights_dtype = next(p.dtype for p in weights if p.is_floating_point())
        names = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        # Qwen2-VL and its kin count positions in three axes and keep an offset on a module.
        self._offsets = [m for m in model.modules() if hasattr(m, "rope_deltas")]
        self._takes_positions = "position_ids" in names and not self._offsets

    @property
    def device(self) -> torch.device:
        """Where inputs go."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> Literal["float32", "float16", "bfloat16"]:
        """The number type of the language model's weights; BLIP-2 keeps others in float32."""
        return _DTYPES[self._weights_dtype]

    @cached_property
    def prompt_template_sha256(self) -> str:
        """Names the prompt format; a vector only fits the format it was made with."""
        return template_sha256(self.instruction, self._chat_template)

    @property
    def _chat_template(self) -> str | None:
        for owner in (self.processor, self.tokenizer):
            template = getattr(owner, "chat_template", None)
            if isinstance(template, dict):  # several, by name
                template = template.get("default")
            if isinstance(template, str):
                return template
        return None

    def _chat(self, messages: list[dict[str, Any]], **options: Any) -> str:
        template = self._chat_template
        text: str = self.processor.apply_chat_template(messages, chat_template=template, **options)
        return text

    # --- prompts ---------------------------------------------------------------------------

    def render(self, prompt: Prompt) -> str:
        """The prompt as text, with one image placeholder per image."""
        if self._chat_template is None:
            image_token = str(getattr(self.processor, "image_token", "<image>"))
            return to_text(prompt, image_token, self.instruction)
        return self._chat(to_messages(prompt, self.instruction), add_generation_prompt=True)

    def inputs(self, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Left-padded model inputs of several prompts.

        Raises:
            ModelError: a prompt is longer than the model can be asked.
            DataError: an image cannot be read.
        """
        texts = [self.render(p) for p in prompts]
        images = [[load_image(source) for source in prompt_images(p)] for p in prompts]
        bos = getattr(self.tokenizer, "bos_token", None)
        options = {"add_special_tokens": False} if bos and texts[0].startswith(bos) else {}
        batch = processed(self.processor, texts, images, **options)
        self.require_length(batch["input_ids"].shape[1])
        return {
            k: v.to(self.device, self._weights_dtype if v.is_floating_point() else None)
            for k, v in batch.items()
            if k != "labels"  # PaliGemma's, for training
        }

    def require_length(self, tokens: int) -> None:
        """Refuse more tokens than the model has positions: of a private chunk, make it null.

        Raises:
            ModelError: too many.
        """
        most = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if most is not None and tokens > most:
            raise ModelError(
                f"a prompt or answer has {tokens} tokens, and the model takes {most}: fewer shots, "
                "or shorter texts, may fit"
            )

    def answer_ids(self, prompt: Prompt, answer: str) -> list[int]:
        """Tokens of ``answer`` as the model should continue the prompt, end token included."""
        text = self.render(prompt)
        following = f" {tidy(answer)}"
        if self._chat_template is not None:
            turn = {"role": "assistant", "content": [{"type": "text", "text": tidy(answer)}]}
            whole = self._chat([*to_messages(prompt, self.instruction), turn])
            if whole.startswith(text):
                following = whole[len(text) :]
        # Tokenised together, because some tokenizers begin a text of its own with an extra token.
        head: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        both: list[int] = self.tokenizer(text + following, add_special_tokens=False).input_ids
        joined = both[: len(head)] == head
        alone: list[int] = self.tokenizer(following, add_special_tokens=False).input_ids
        ids = both[len(head) :] if joined else alone
        ends = self.end_ids
        for place, token in enumerate(ids):
            if token in ends:
                return ids[: place + 1]
        return [*ids, min(ends)] if ends else ids

    @property
    def end_ids(self) -> set[int]:
        """Tokens that end an answer."""
        end = self.model.generation_config.eos_token_id
        return set() if end is None else set(end) if isinstance(end, list) else {end}

    # --- passes ----------------------------------------------------------------------------

    @torch.inference_mode()
    def last_token_heads(self, prompt: Prompt) -> Float[np.ndarray, " coordinates"]:
        """What every attention head sends to its projection at the prompt's last token.

        One prompt, one forward pass, nothing shared with any other: the isolation on which the
        sensitivity bound rests (docs/privacy.md).
        """
        self.position_offsets = [None] * len(self._offsets)
        with record_heads(self.projections) as records:
            self.forward(self.inputs([prompt]), use_cache=False, logits_to_keep=1)
            return np.concatenate([r[0].to("cpu", torch.float32).numpy() for r in records])

    def recover(self) -> None:
        """After a failed pass: free its memory, and make sure that the device still works.

        Raises:
            ModelError: the device is lost; every later chunk would fail for an earlier one's sake.
        """
        if self.device.type != "cuda":
            return
        try:
            torch.cuda.empty_cache()
            torch.zeros(1, device=self.device).add_(1).item()
        except RuntimeError:
            raise ModelError(
                "the GPU stopped working and has to be restarted with the program; nothing was "
                "released"
            ) from None

    def forward(
        self, inputs: Mapping[str, Tensor], cache: Any = None, **options: Any
    ) -> tuple[Tensor, Any]:
        """One pass of the model: (logits, cache), whatever this version calls its cache.

        Padded rows get the positions that they have alone; some models number them from the left.
        """
        seen = inputs.get("attention_mask")
        if cache is not None:
            options[self._cache_argument] = cache
        elif self._takes_positions and seen is not None and not bool(seen.all()):
            options["position_ids"] = (seen.long().cumsum(-1) - 1).clamp(min=0)
        out = self.model(**inputs, **options)
        kept = out.cache if hasattr(out, "cache") else getattr(out, "past_key_values", None)
        return out.logits, kept

    @property
    def position_offsets(self) -> list[Tensor | None]:
        """What the last prompt has left on the modules, to be put back before it is continued."""
        return [module.rope_deltas for module in self._offsets]

    @position_offsets.setter
    def position_offsets(self, values: list[Tensor | None]) -> None:
        for module, value in zip(self._offsets, values, strict=True):
            module.rope_deltas = value

    def prepare(self, queries: Sequence[Query | Prompt], batch_size: int = 64) -> PreparedQueries:
        """Tokenise queries (or whole prompts) once, to be answered under several vectors."""
        prompts = [q if isinstance(q, Prompt) else Prompt((), q) for q in queries]
        batch_size = self.rows(batch_size)
        starts = range(0, len(prompts), batch_size)
        return PreparedQueries(tuple(self.inputs(prompts[s : s + batch_size]) for s in starts))

    @torch.inference_mode()
    def generate(
        self,
        queries: Sequence[Query | Prompt] | PreparedQueries,
        max_new_tokens: int | None = None,
        allowed: Sequence[str] = (),
    ) -> list[str]:
        """One greedy answer per query, in order, without surrounding white space.

        Args:
            queries: what to answer.
            max_new_tokens: longest answer, by default the model's.
            allowed: the only answers that may be given, if any are named.
        """
        most = max_new_tokens or self.max_new_tokens
        prepared = queries if isinstance(queries, PreparedQueries) else self.prepare(queries)
        answers: list[str] = []
        for batch in prepared.batches:
            start = batch["input_ids"].shape[1]
            only = self._only(allowed, start) if allowed else None
            ids = self.model.generate(
                **batch, max_new_tokens=most, do_sample=False, prefix_allowed_tokens_fn=only
            )
            new = ids[:, start:]
            answers += self.tokenizer.batch_decode(new, skip_special_tokens=True)
        return [a.strip() for a in answers]

    def _only(self, answers: Sequence[str], start: int) -> Callable[[int, Tensor], list[int]]:
        """For each begun answer the tokens that may follow; ``start`` is the prompt's length."""
        bare = Prompt((), Query(Image.new("RGB", (64, 64)), "?"))
        following: dict[tuple[int, ...], set[int]] = {}
        for answer in answers:
            ids = self.answer_ids(bare, answer)
            for place, token in enumerate(ids):
                following.setdefault(tuple(ids[:place]), set()).add(token)
        end = sorted(self.end_ids)  # an answer that has ended is padded, whatever is allowed

        def allowed(_row: int, ids: Tensor) -> list[int]:
            return sorted(following.get(tuple(ids[start:].tolist()), end))

        return allowed

    def rows(self, most: int) -> int:
        """Prompts in one batch: ``most``, or one where others in a batch would change a prompt."""
        return 1 if self.model.config.model_type in _NEVER_BATCHED else most

    # --- patching --------------------------------------------------------------------------

    def by_layer(self, flat: np.ndarray, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Cut flat coordinates, one row or many, into one [rows, width] tensor a layer."""
        rows = np.atleast_2d(flat)
        return [
            torch.tensor(part, dtype=dtype, device=self.device) for part in self.layout.split(rows)
        ]

    def coordinate_masks(self, heads: Bool[np.ndarray, "*rows heads"]) -> list[Tensor]:
        """Head masks, one or many, as per-layer masks over coordinates."""
        return self.by_layer(np.stack([self.layout.coordinates(m) for m in np.atleast_2d(heads)]))

    @contextmanager
    def patched(
        self,
        values: Float[np.ndarray, " coordinates"],
        heads: Bool[np.ndarray, " heads"],
        patch: str = "every-step",
        alpha: float = 1.0,
    ) -> Iterator[None]:
        """Generate with ``values`` in place of the selected heads.

        Args:
            values: flat vector of all coordinates; those of other heads are not read.
            heads: the head mask.
            patch: ``"prompt"`` for the prompt's last token alone, ``"every-step"`` for that and
                each decoding step.
            alpha: strength, 1 replaces.

        Raises:
            InternalError: a forward pass went by without touching a patched layer: the answers
                would have been the unpatched model's.
        """
        masks = self.coordinate_masks(heads)
        passes = 0

        def count(_module: nn.Module, _args: object) -> None:
            nonlocal passes
            passes += 1

        # Not the model itself: BLIP-2 generates with its language model alone.
        counter = self.model.get_decoder().register_forward_pre_hook(count)
        try:
            where = last_token(every_step=patch == "every-step")
            with patch_heads(self.projections, self.by_layer(values), masks, where, alpha) as fired:
                yield
        finally:
            counter.remove()
        silent = [i for i, m in enumerate(masks) if bool(m.any()) and fired[i] < passes]
        if silent:
            raise InternalError(
                f"layers {silent} were to be patched but their attention output projections did "
                "not run in every pass; this architecture needs a row of its own"
            )


def load_model(
    name: str | Path,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    device: str | None = None,
    device_map: str | None = None,
    bits: int | None = None,
    attention: str | None = None,
    projections: str | None = None,
    trust_remote_code: bool = False,
    instruction: str | None = None,
    max_new_tokens: int = 20,
) -> VisionLanguageModel:
    """Load a vision-language model from a local folder, a hub id, or ``"embedded"``.

    Args:
        name: folder or hub id of an image-text-to-text model; ``"embedded"`` is the tiny one that
            comes with the package.
        revision: hub branch, tag or commit.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"``, or ``"auto"``: float32 on a CPU, else
            the checkpoint's. Weights are read in the type that is computed with.
        device: such as ``"cuda"``; the default is a GPU when there is one.
        device_map: such as ``"auto"``, to spread a large model over several devices instead.
        bits: 4 or 8, to load the weights quantised.
        attention: ``"eager"`` or ``"sdpa"``; by default transformers' choice.
        projections: a regular expression for the full names of the attention output projections,
            where the general rule does not find them.
        trust_remote_code: run Python code that comes with the checkpoint. Never by default.
        instruction: a line added to every question, such as "Answer with a single word.", or
            ``""`` for none. By default the model's own: ``answer_instruction`` in its config.json,
            else that of its family (`dpmtv.data.prompts.INSTRUCTIONS`).
        max_new_tokens: longest answer.

    Raises:
        ModelError: not there, not a vision-language model, weights that are not exactly the
            architecture's, or heads not found.
    """
    model, processor, folder = load_parts(
        name,
        revision=revision,
        dtype=dtype,
        device=device,
        device_map=device_map,
        bits=bits,
        attention=attention,
        trust_remote_code=trust_remote_code,
    )
    commit = None if folder else getattr(model.config, "_commit_hash", None)
    if instruction is None:
        own = getattr(model.config, "answer_instruction", None)
        instruction = instruction_for(model.config.model_type) if own is None else str(own)
    loaded = VisionLanguageModel(
        model,
        processor,
        hub_id=str(name) if commit else None,
        revision=commit,
        weights_sha256=hash_files(folder) if folder else None,
        projections=projections,
        instruction=instruction,
        max_new_tokens=max_new_tokens,
    )
    try:
        shown = loaded.render(Prompt((), Query("", "What is shown?")))
    except Exception as error:
        if not type(error).__module__.startswith("jinja2"):  # an optional package
            raise
        raise ModelError(f"{name}: its chat template cannot be used: {error}") from error
    trap = prompt_trap(shown)
    if trap is not None:
        warnings.warn(f"{name}: {trap}; its chat template may be damaged", stacklevel=2)
    return loaded
