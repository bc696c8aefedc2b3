"""Make the embedded model and its suite from nothing: ``python training/make_embedded.py``.

Needs scikit-learn and easy-vqa besides the package (training/requirements.txt). An interrupted run
goes on where it stopped. The suite's data are written first: they do not depend on the model.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch

from export import EMBEDDED, export_data, export_model
from model import make_model, make_processor, make_tokenizer
from pictures import load_splits
from train import STAGES, Patcher, Scaffold, cache_features, log, train_text, train_vision

HERE = Path(__file__).resolve().parent
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "pillow", "scikit-learn", "easy-vqa")
AUGMENTATIONS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=HERE / "work", help="checkpoints and log")
    parser.add_argument("--output", type=Path, default=EMBEDDED, help="receives model/ and data/")
    parser.add_argument("--data-only", action="store_true", help="write the suite's data and stop")
    parser.add_argument("--seed", type=int, default=1, help="1 is the packaged model's")
    parser.add_argument("--head-dim", type=int, default=16, help="88 for the wide model")
    parser.add_argument("--bind-steps", type=int, help="of the last stage; wide model: 1000")
    parser.add_argument("--threads", type=int, default=1, help="more round differently")
    options = parser.parse_args()
    splits = load_splits()
    export_data(splits, options.output / "data")
    if options.data_only:
        return
    work, seed = options.work, options.seed
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, options.head_dim)
    log(
        work,
        seed=seed,
        threads=options.threads,
        python=platform.python_version(),
        parameters=sum(p.numel() for p in model.parameters()),
        **{name: version(name) for name in LIBRARIES},
    )
    train_vision(model, splits, 2000, work, seed)
    features = cache_features(model, splits["train"], AUGMENTATIONS, seed + 2)
    dev = (splits["dev"], cache_features(model, splits["dev"], 1, seed + 3))
    tools = Scaffold(model.model.text_model), Patcher(model.model.text_model)
    for stage in STAGES:
        if stage.injected and options.bind_steps:
            stage = replace(stage, steps=options.bind_steps)
        train_text(model, tokenizer, splits["train"], features, dev, work, stage, seed, *tools)
    export_model(model, make_processor(tokenizer), options.output / "model")
    if options.output == EMBEDDED:
        shutil.copy(work / "log.jsonl", HERE / "log.jsonl")
        plot(HERE / "log.jsonl", HERE.parent / "docs" / "img" / "training.png")


def plot(log_file: Path, target: Path) -> None:
    """Losses and dev accuracy against wall time, as docs/embedded.md shows them."""
    from matplotlib.figure import Figure

    entries = [json.loads(line) for line in log_file.read_text("utf-8").splitlines()]
    stages = [stage.name for stage in STAGES]
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    offset, starts = 0.0, {}
    for stage in stages:
        # A run that went on repeats the steps since its last save: the later entry counts.
        of = [e for e in entries if e.get("stage") == stage]
        of = list({(e["step"], "dev" in e): e for e in of}.values())
        starts[stage] = offset
        losses = [e for e in of if "loss" in e]
        for name, color in (("loss", "C0"), ("injected", "C1"), ("listed", "C2")):
            shown = [e for e in losses if name in e]
            words = {"loss": "in context", "injected": "injected mean", "listed": "words listed"}
            left.plot(
                [(offset + e["seconds"]) / 60 for e in shown],
                [e[name] for e in shown],
                color,
                label=words[name] if stage == stages[-1] else None,
            )
        at = {e["step"]: (offset + e["seconds"]) / 60 for e in losses}
        dev = [e for e in of if "dev" in e]
        for place, kind in enumerate(dev[0]["dev"]):
            for shots, style in (("4-shot", "-"), ("vector, every step", ":")):
                right.plot(
                    [at[e["step"]] for e in dev],
                    [100 * e["dev"][kind][shots] for e in dev],
                    f"C{place}{style}",
                    label=f"{kind}, {shots}" if stage == stages[-1] else None,
                )
        offset += losses[-1]["seconds"]
    for axis in (left, right):
        for stage, start in starts.items():
            axis.axvline(start / 60, color="0.8", lw=1)
            axis.text(start / 60, axis.get_ylim()[1], f" {stage}", size=8, va="top", color="0.4")
        axis.set_xlabel("minutes of training after the vision tower")
    left.set_ylabel("loss, nats")
    right.set_ylabel("unseen pictures right, %")
    left.legend(fontsize=7)
    figure.legend(
        *right.get_legend_handles_labels(), loc="outside lower center", fontsize=6, ncol=6
    )
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main()
