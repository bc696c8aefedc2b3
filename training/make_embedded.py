"""Make the embedded model and its data from nothing: ``python training/make_embedded.py``.

Needs scikit-learn and easy-vqa besides the package (training/requirements.txt). About an hour
on two cores; interrupted runs go on where they stopped. Results land in src/dpmtv/embedded/.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from model import make_model, make_processor, make_tokenizer
from pictures import load_splits
from train import AUGMENTATIONS, cache_features, log, train_text, train_vision

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=HERE / "work", help="checkpoints and log")
    parser.add_argument("--vision-steps", type=int, default=1600)
    parser.add_argument("--text-steps", type=int, default=2400)
    parser.add_argument("--inject-steps", type=int, default=900)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    work = options.work
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    splits = load_splits()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    log(work, torch=torch.__version__, parameters=sum(p.numel() for p in model.parameters()))
    train_vision(model, splits, options.vision_steps, work)
    features = cache_features(model, splits["train"], AUGMENTATIONS, seed=2)
    dev = (splits["dev"], cache_features(model, splits["dev"], 1, seed=3))
    common = (model, tokenizer, splits["train"], features, dev, work)
    train_text(*common, "text", options.text_steps, 2e-3, injected=False)
    train_text(*common, "inject", options.inject_steps, 8e-4, injected=True)

    from export import export

    export(model, tokenizer, make_processor(tokenizer), splits)


if __name__ == "__main__":
    main()
