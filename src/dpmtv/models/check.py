"""Find out on a loaded model whether all that the method rests on holds for it."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from dpmtv.models.extraction import preflight, public_activations
from dpmtv.models.mask_loss import MaskLoss, answered_right, whole_pass_losses
from dpmtv.types import Demonstration, Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from dpmtv.models.adapters import VisionLanguageModel

_ANSWER = "a red circle"
_STEPS = 3


@dataclass(frozen=True)
class Finding:
    """One thing that must hold, whether it does, and what was seen."""

    what: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class ModelReport:
    """What was found on one model.

    Args:
        model: as it was named.
        model_type, architecture, dtype, attention, device: how it was loaded.
        layers: layers whose heads are patched; ``of_layers`` all decoder layers.
        heads, head_dims: of the patched layers.
        findings: what must hold; one failure refuses the model.
        kept_prefixes: whether the head search may run a prompt once for many masks; else it runs
            whole passes, slower and as right.
        vector_bytes: a task vector of all heads, float32.
        cache_bytes_a_token: keys and values of all layers; None where it could not be read.
        chunk_shots, chunk_tokens, chunk_seconds: one chunk's prompt and its forward pass.
        memory_bytes: most memory of the process (on a GPU: of tensors) up to then.
        versions: of the packages.
    """

    model: str
    model_type: str
    architecture: str
    dtype: str
    attention: str
    device: str
    layers: int
    of_layers: int
    heads: tuple[int, ...]
    head_dims: tuple[int, ...]
    findings: tuple[Finding, ...]
    kept_prefixes: bool
    vector_bytes: int
    cache_bytes_a_token: float | None
    chunk_shots: int
    chunk_tokens: int | None
    chunk_seconds: float | None
    memory_bytes: int
    versions: dict[str, str]

    @property
    def reasons(self) -> list[str]:
        """Why the model is refused; empty if it is usable."""
        return [f"{f.what}: {f.detail}" for f in self.findings if not f.passed]


def check_model(
    model: VisionLanguageModel,
    name: str,
    shots: int = 4,
    progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
) -> ModelReport:
    """Check hooks, isolation, images, batches and prefixes with made-up pictures.

    Args:
        model: the model.
        name: what to call it.
        shots: K of the longest prompt.
        progress: called with (what, done, total).
    """
    kept = [False]
    checks: dict[str, Callable[[], tuple[bool, str]]] = {
        f"prompts of {shots} demonstrations run, alone and forgotten": lambda: _isolation(
            model, shots
        ),
        "every image stands at its place": lambda: _images(model),
        "a layer's own values change nothing": lambda: _own_values(model),
        "each layer fires once in every pass": lambda: _firing(model),
        "other values of any layer change the answer": lambda: _other_values(model, kept),
        "a batch gives what single prompts give": lambda: _batch(model),
        "answers are scored as they are decoded": lambda: _decoding(model),
    }
    findings = []
    for done, (what, check) in enumerate(checks.items(), 1):
        try:
            passed, detail = check()
        except Exception as error:
            passed, detail = False, f"{type(error).__name__}: {str(error).strip()[:300]}"
        findings.append(Finding(what, passed, detail))
        progress("checks", done, len(checks))
    tokens, seconds = _chunk(model, shots) if findings[0].passed else (None, None)
    config = model.model.config
    return ModelReport(
        model=name,
        model_type=config.model_type,
        architecture=model.identity.architecture,
        dtype=model.dtype,
        attention=str(config._attn_implementation),
        device=str(model.device),
        layers=model.layout.layers,
        of_layers=int(config.get_text_config().num_hidden_layers),
        heads=model.layout.heads,
        head_dims=model.layout.head_dims,
        findings=tuple(findings),
        kept_prefixes=kept[0],
        vector_bytes=4 * model.layout.size,
        cache_bytes_a_token=_cache_bytes(model) if findings[0].passed else None,
        chunk_shots=shots,
        chunk_tokens=tokens,
        chunk_seconds=seconds,
        memory_bytes=_memory(model),
        versions={p: version(p) for p in ("dpmtv", "transformers", "torch")},
    )


def _picture(which: int) -> Image.Image:
    rng = np.random.default_rng(which)
    return Image.fromarray(rng.integers(0, 256, (64, 96, 3), dtype=np.uint8))


def _prompt(*pictures: int) -> Prompt:
    """The last picture is asked after the others were shown."""
    asked = "What is shown in this picture?"
    shown = [Demonstration(_picture(p), asked, _ANSWER) for p in pictures[:-1]]
    return Prompt(tuple(shown), Query(_picture(pictures[-1]), asked))


def _tolerance(model: VisionLanguageModel) -> float:
    """Of the largest value: rounding, also of kernels that depend on the batch."""
    return 1e-4 if model.dtype == "float32" else 5e-2


def _isolation(model: VisionLanguageModel, shots: int) -> tuple[bool, str]:
    preflight(model, shots)
    return True, "a longer prompt in between changes nothing, all values are finite"


@torch.inference_mode()
def _images(model: VisionLanguageModel) -> tuple[bool, str]:
    """Another picture must change what comes from its place on, and nothing before it."""
    base = _all_tokens(model, _prompt(1, 2, 3))
    places: list[int] = []
    for changed in ((9, 2, 3), (1, 9, 3), (1, 2, 9)):
        other = _all_tokens(model, _prompt(*changed))
        if len(other) != len(base):
            return False, "the number of tokens depends on what is in a picture"
        moved = _moved(model, base, other)
        if not moved[-1]:
            return False, f"picture {len(places) + 1} of 3 does not reach the last token"
        places.append(int(moved.nonzero()[0, 0]))
    if not _moved(model, base, _all_tokens(model, _prompt(2, 1, 3)))[-1]:
        return False, "two demonstrations with their pictures swapped are the same to the model"
    where = " < ".join(map(str, places))
    if places[0] < places[1] < places[2]:
        return True, f"3 pictures from tokens {where} of {len(base)} on; swapped ones differ"
    if len(set(places)) == 1:
        return True, "3 pictures, all seen from the first token on; swapped ones differ"
    return False, f"the pictures begin at tokens {', '.join(map(str, places))}, out of order"


def _all_tokens(model: VisionLanguageModel, prompt: Prompt) -> Tensor:
    """What the last projection receives, [tokens, coordinates]."""
    seen: list[Tensor] = []
    handle = model.projections[-1].register_forward_pre_hook(
        lambda _module, args: seen.append(args[0][0].float())
    )
    try:
        model.forward(model.inputs([prompt]), use_cache=False, logits_to_keep=1)
    finally:
        handle.remove()
    return seen[-1]


def _moved(model: VisionLanguageModel, one: Tensor, other: Tensor) -> Tensor:
    """Which tokens differ, in two passes of the same shapes: by more than kernels' last bits."""
    least = 1e-6 if model.dtype == "float32" else 1e-3
    return (one - other).abs().amax(1) > least * one.abs().max()


@torch.inference_mode()
def _own_values(model: VisionLanguageModel) -> tuple[bool, str]:
    prompt = _prompt(1)
    inputs = model.inputs([prompt])
    before, _ = model.forward(inputs, use_cache=False, logits_to_keep=1)
    heads = np.ones(model.layout.n_heads, dtype=bool)
    with model.patched(model.last_token_heads(prompt), heads):
        after, _ = model.forward(inputs, use_cache=False, logits_to_keep=1)
    change = _relative(after[:, -1], before[:, -1])
    return change <= _tolerance(model), f"largest change of a logit {change:.1e} of the largest"


def _relative(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


@torch.inference_mode()
def _firing(model: VisionLanguageModel) -> tuple[bool, str]:
    """Hooks see the prompt, then one token a decoding step.

    So does the decoder itself, by which patching counts the passes.
    """
    batch = model.inputs([_prompt(1)])
    lengths: list[list[int]] = [[] for _ in model.projections]
    passes = [0]

    def count(_module: nn.Module, _args: object) -> None:
        passes[0] += 1

    def counter(layer: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _module, args: lengths[layer].append(args[0].shape[1])

    handles = [
        p.register_forward_pre_hook(counter(layer)) for layer, p in enumerate(model.projections)
    ]
    handles.append(model.model.get_decoder().register_forward_pre_hook(count))
    try:
        _decode(model, batch, at_least=_STEPS)
    finally:
        for handle in handles:
            handle.remove()
    want = [batch["input_ids"].shape[1], *[1] * (_STEPS - 1)]
    wrong = [layer for layer, seen in enumerate(lengths) if seen != want]
    if passes[0] != _STEPS:
        return False, f"the decoder ran {passes[0]} times in {_STEPS} passes"
    if wrong:
        return False, f"layer {wrong[0]} saw {lengths[wrong[0]]} tokens, not {want}"
    return True, f"{len(lengths)} layers, {_STEPS} passes: {want} tokens each"


def _decode(model: VisionLanguageModel, batch: Any, at_least: int = 1) -> list[int]:
    ids = model.model.generate(
        **batch, max_new_tokens=_STEPS, min_new_tokens=at_least, do_sample=False
    )
    return [int(i) for i in ids[0, batch["input_ids"].shape[1] :]]


def _other_values(model: VisionLanguageModel, kept: list[bool]) -> tuple[bool, str]:
    """Layer by layer, by whole passes and from a kept prefix."""
    prompts = [_prompt(1), _prompt(2)]
    own = model.last_token_heads(prompts[0])
    spread = [np.full(part.size, part.std()) for part in model.layout.split(own)]
    vector = own + np.concatenate(spread)
    layer_of = np.repeat(np.arange(model.layout.layers), model.layout.heads)
    masks = np.arange(-1, model.layout.layers)[:, None] == layer_of  # first: no head at all
    loss = MaskLoss(model, prompts, [_ANSWER] * 2, [vector] * 2)
    ours = loss(masks, 0)
    kept[0] = loss.keeps_prefixes
    whole = whole_pass_losses(
        model, prompts[0], loss.answers[0], model.by_layer(vector), masks, loss.patch
    )
    apart = float(np.abs(ours - whole.cpu().numpy()).max())
    change = (whole[1:] - whole[0]).abs()
    how = "kept prefixes" if kept[0] else "whole passes alone (kept prefixes differ)"
    detail = f"loss changes by {change.min():.1e} to {change.max():.1e} nats; search by {how}"
    if apart > _tolerance(model) * (1 + float(whole.max())):
        return False, f"kept prefixes differ from whole passes by {apart:.1e} nats"
    return bool((change > 1e-6).all()), detail


def _batch(model: VisionLanguageModel) -> tuple[bool, str]:
    prompts = [_prompt(1), _prompt(2, 3, 4)]
    single = np.stack([model.last_token_heads(p) for p in prompts])
    apart = np.abs(public_activations(model, prompts) - single).max() / np.abs(single).max()
    return bool(apart <= _tolerance(model)), f"largest difference {apart:.1e} of the largest value"


@torch.inference_mode()
def _decoding(model: VisionLanguageModel) -> tuple[bool, str]:
    """Greedy tokens must be the likeliest ones of a pass over prompt and answer, too."""
    prompts = [_prompt(1), _prompt(2, 3)]
    no_heads = np.zeros(model.layout.n_heads, dtype=bool)
    zeros = np.zeros((1, model.layout.size), dtype=np.float32)
    for prompt in prompts:
        said = _decode(model, model.inputs([prompt]))
        if not answered_right(model, prompt, said, zeros, no_heads, "every-step").all():
            return False, "the tokens of a greedy answer are not the likeliest in one pass over it"
    return True, f"greedy answers to {len(prompts)} prompts"


def _chunk(model: VisionLanguageModel, shots: int) -> tuple[int, float]:
    prompt = _prompt(*range(shots + 1))
    start = time.perf_counter()
    model.last_token_heads(prompt)
    seconds = time.perf_counter() - start
    return int(model.inputs([prompt])["input_ids"].shape[1]), seconds


@torch.inference_mode()
def _cache_bytes(model: VisionLanguageModel) -> float | None:
    """Bytes of keys and values that a token adds, from a cache that was made."""
    inputs = model.inputs([_prompt(1)])
    _, cache = model.forward(inputs, use_cache=True, logits_to_keep=1)
    if cache is None:
        return None
    layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    tensors = [t for layer in layers for t in (layer.keys, layer.values)]
    return float(sum(t.numel() / t.shape[-2] * t.element_size() for t in tensors))


def _memory(model: VisionLanguageModel) -> int:
    if model.device.type == "cuda":
        return torch.cuda.max_memory_allocated(model.device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
