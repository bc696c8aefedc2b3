"""Speed of REINFORCE's losses: one kept prefix and one last token, against whole passes.

    python benchmarks/mask_loss.py [--json FILE]

Compares, side by side in one run, on the embedded model and on a random one of 130 million
parameters with prompts of more than 400 tokens:
- ours: `dpmtv.models.mask_loss.MaskLoss`, as the head search uses it;
- the plain loop: one whole forward pass per mask, as the reference implementation of multimodal
  task vectors does;
- batched full passes: all masks of a step as one batch.
Ours runs all steps, prefixes included. The others repeat the same work in every step, so they run
``--other-steps`` steps and are compared per step.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpmtv.data.demonstrations import read_demonstrations, require_good
from dpmtv.evaluation.benchmark import EMBEDDED_DATA
from dpmtv.models.adapters import VisionLanguageModel, load_model
from dpmtv.models.mask_loss import MaskLoss, whole_pass_losses
from dpmtv.types import Prompt

if TYPE_CHECKING:
    from collections.abc import Callable


def large_model(small: VisionLanguageModel) -> VisionLanguageModel:
    """130 million random parameters in the text model; the tiny vision tower favours nobody."""
    config = type(small.model.config).from_dict(small.model.config.to_dict())
    text = config.text_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = 768, 3072, 12
    text.num_attention_heads = text.num_key_value_heads = 12
    text.head_dim, text.vocab_size, text.initializer_range = 64, 20_000, 0.05
    torch.manual_seed(0)
    model = type(small.model)(config).float()
    model.generation_config = small.model.generation_config
    return VisionLanguageModel(model, small.processor, weights_sha256="0" * 64)


def compare(
    model: VisionLanguageModel, name: str, shots: int, steps: int, other_steps: int, masks: int
) -> list[dict[str, Any]]:
    """Rows for docs/speed.json."""
    path = EMBEDDED_DATA / "tasks" / "digit-phrase" / "private.jsonl"
    records = require_good(read_demonstrations(path), str(path))
    examples, size = 10, shots + 1
    chunks = [records[i * size : (i + 1) * size] for i in range(examples)]
    prompts = [Prompt(tuple(c[:-1]), c[-1].query) for c in chunks]
    answers = [c[-1].answer for c in chunks]
    rng = np.random.default_rng(0)
    vector = rng.normal(0, 0.3, model.layout.size)
    drawn = rng.random((steps, masks, model.layout.n_heads)) < 0.5
    loss = MaskLoss(model, prompts, answers, [vector] * examples)
    tokens = model.inputs(prompts[:1])["input_ids"].shape[1]

    def timed(work: Callable[[], Any]) -> tuple[float, Any]:
        started = time.perf_counter()
        result = work()
        return time.perf_counter() - started, result

    loss(drawn[0], 0)  # warm up, then start with no prefix kept
    loss = MaskLoss(model, prompts, answers, [vector] * examples)
    ours, got = timed(lambda: [loss(drawn[s], s % examples) for s in range(steps)])
    rows = []
    for other, together in (("plain loop, one pass a mask", 1), ("batched full passes", masks)):
        spent, want = timed(
            lambda together=together: [
                whole_pass_losses(
                    model,
                    prompts[s % examples],
                    loss.answers[s % examples],
                    vector,
                    drawn[s],
                    loss.patch,
                    together,
                )
                for s in range(other_steps)
            ]
        )
        gap = max(float(np.abs(a - b).max()) for a, b in zip(got, want, strict=False))
        per_step, other_per_step = ours / steps, spent / other_steps
        rows.append(
            {
                "bench": f"REINFORCE losses, {masks} masks a step",
                "ours_s": per_step * steps,
                "other_s": other_per_step * steps,
                "other": f"{other} ({other_steps} of {steps} steps run)",
                "ratio": other_per_step / per_step,
                "max_difference": gap,
                "model": name,
                "tokens": tokens,
                "command": "python benchmarks/mask_loss.py",
            }
        )
        print(
            f"{name}, {tokens} tokens, against {other}: {other_per_step:.3f} s / {per_step:.4f} s "
            f"a step = {rows[-1]['ratio']:.1f}×, largest loss difference {gap:.1e}",
            file=sys.stderr,
            flush=True,
        )
    return rows


def main() -> None:
    """Run both models and print or write the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--masks", type=int, default=32)
    parser.add_argument("--other-steps", type=int, default=2, help="of the large model; ×10 small")
    options = parser.parse_args()
    small = load_model("embedded")
    rows = compare(small, "embedded", 8, options.steps, 10 * options.other_steps, options.masks)
    large = large_model(small)
    count = sum(p.numel() for p in large.model.parameters()) / 1e6
    name = f"random Idefics3, {count:.0f} M parameters"
    rows += compare(large, name, 25, options.steps, options.other_steps, options.masks)
    text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
