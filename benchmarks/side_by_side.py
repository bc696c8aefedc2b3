"""Two ways of doing the same, timed in turns in one process, and the random models they run on."""

from __future__ import annotations

import copy
import math
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from dpmtv.models.adapters import VisionLanguageModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dpmtv.types import Prompt

Row = dict[str, Any]


def timed(work: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Seconds and result; a GPU's queue is empty at both readings of the clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started, result


def in_turns(
    ours: Callable[[], Any], other: Callable[[], Any], pairs: int, device: torch.device
) -> list[tuple[float, float]]:
    """(ours, other) in seconds, one after the other; each pair begins with the other of the two.

    What disturbs a machine for longer than a pair disturbs both, and leaves their ratio.
    """
    ours(), other()  # warm up
    seconds = []
    for pair in range(pairs):
        if pair % 2:
            late, _ = timed(other, device)
            seconds.append((timed(ours, device)[0], late))
        else:
            early, _ = timed(ours, device)
            seconds.append((early, timed(other, device)[0]))
    return seconds


def median_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """At least 95 % for the median by order statistics; (None, None) for fewer than 6 values.

    The median lies below the k-th smallest of n independent values only if fewer than k are below
    it, with probability P(Binomial(n, 1/2) < k), whatever their distribution; so too above the
    k-th largest. k is the largest for which that is at most 2.5 % (6 of 20: 95.9 % in all).
    """
    n, k, below = len(values), 0, 0.0
    while below + math.comb(n, k) / 2**n <= 0.025:
        below += math.comb(n, k) / 2**n
        k += 1
    ordered = sorted(values)
    return (ordered[k - 1], ordered[n - k]) if k else (None, None)


def row(
    bench: str,
    other: str,
    measured: Sequence[tuple[float, float]],
    *,
    ratio_of: str,
    target: str | None,
    max_difference: float | None,
    model: str,
    tokens: int,
    device: str,
    unit: str = "s",
) -> Row:
    """A row of docs/speed.json; one without ``max_difference`` compares unlike results.

    Args:
        bench: what was measured.
        other: what it is compared with.
        measured: (ours, other) of each pair.
        ratio_of: ``"ours / other"`` or ``"other / ours"``.
        target: such as ``"≤ 1.05"``, for the ratio's median.
        max_difference: largest difference between the results, where they should be the same.
        model: its name.
        tokens: length of our prompts.
        device: as `device_name` says.
        unit: ``"s"`` or ``"MB"``.
    """
    ratios = [a / b if ratio_of == "ours / other" else b / a for a, b in measured]
    low, high = median_interval(ratios)
    middle = [statistics.median(side) for side in zip(*measured, strict=True)]
    seconds = middle if unit == "s" else [None, None]
    megabytes = middle if unit == "MB" else [None, None]
    return {
        "bench": bench,
        "ours_s": seconds[0],
        "other_s": seconds[1],
        "ours_mb": megabytes[0],
        "other_mb": megabytes[1],
        "other": other,
        "ratio": statistics.median(ratios),
        "ratio_of": ratio_of,
        "low": low,
        "high": high,
        "pairs": len(measured),
        "target": target,
        "max_difference": max_difference,
        "model": model,
        "tokens": tokens,
        "device": device,
        "command": "python benchmarks/speed.py",
    }


def device_name(device: torch.device) -> str:
    """A GPU's name, or how many threads of a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} thread(s)"


def large_model(small: VisionLanguageModel, device: torch.device) -> VisionLanguageModel:
    """130 million random parameters, 64 tokens a picture; bfloat16 on a GPU, else float32."""
    config = type(small.model.config).from_dict(small.model.config.to_dict())
    text, tower = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = 768, 3072, 12
    text.num_attention_heads = text.num_key_value_heads = 12
    text.head_dim, text.vocab_size, text.initializer_range = 64, 20_000, 0.05
    tower.hidden_size, tower.intermediate_size = 192, 768
    tower.image_size, tower.patch_size, config.scale_factor = 256, 16, 2
    processor = copy.deepcopy(small.processor)
    processor.image_seq_len = 64
    edge = {"longest_edge": 256}
    processor.image_processor.size = processor.image_processor.max_image_size = edge
    return _random(small, config, processor, device)


def wide_model(small: VisionLanguageModel, device: torch.device) -> VisionLanguageModel:
    """A small model with as many coordinates as one of 7 billion parameters: 32 × 4,096."""
    config = type(small.model.config).from_dict(small.model.config.to_dict())
    text = config.text_config
    text.hidden_size, text.head_dim, text.num_hidden_layers = 64, 2048, 8
    return _random(small, config, small.processor, device)


def _random(
    small: VisionLanguageModel, config: Any, processor: Any, device: torch.device
) -> VisionLanguageModel:
    torch.manual_seed(0)
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = type(small.model)(config).to(device, kind)
    model.generation_config = copy.deepcopy(small.model.generation_config)
    return VisionLanguageModel(model, processor, weights_sha256="0" * 64)


def name_of(model: VisionLanguageModel) -> str:
    """Its parameters and number type."""
    count = sum(p.numel() for p in model.model.parameters()) / 1e6
    return f"random Idefics3, {count:.0f} M parameters, {model.dtype}"


def length(model: VisionLanguageModel, prompt: Prompt) -> int:
    """Tokens of a prompt."""
    return int(model.inputs([prompt])["input_ids"].shape[1])
