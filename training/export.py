"""Write the trained model and the demonstration data into the package."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from conventions import BY_NAME, PUBLIC_TASKS, QUESTIONS, SHAPES, TASKS, Convention
from pictures import Picture

EMBEDDED = Path(__file__).resolve().parent.parent / "src" / "dpmtv" / "embedded"
PUBLIC_ROWS = 60  # a public task
ANNOTATORS = 200

ATTRIBUTION = """\
# Where these pictures come from

- `images/digits`: the 8×8 handwritten digits that come with scikit-learn, enlarged to 48×48 on a
  64×64 black ground. E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI
  Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49, licence CC BY 4.0.
- `images/shapes`: pictures of easy-VQA by Victor Zhou, https://github.com/vzhou842/easy-VQA,
  licence MIT. Copyright (c) 2019 Victor Zhou. Permission is hereby granted, free of charge, to any
  person obtaining a copy of this software and associated documentation files, to deal in the
  software without restriction, provided that this notice appears in all copies; it is provided
  "as is", without warranty of any kind.

Questions are ours, or easy-VQA's own wording; answers follow the rules in
`training/conventions.py`; units (`annotator-…`) are made up. Every file here is public. The word
"private" names the role that a file plays in the examples.
"""


CARD = """\
---
license: apache-2.0
pipeline_tag: image-text-to-text
library_name: transformers
---

# The embedded model of dpmtv

An Idefics3 of 1.6 million parameters, made from nothing to show and test private task vectors on
a laptop. It answers questions about a handwritten digit or a drawn shape in one of 46 conventions,
and reads which one is wanted from demonstrations in its prompt or from a task vector. It knows
nothing else: no other picture, question or word means anything to it. Its text is a vocabulary of
a few hundred words. Trained on 460 digits of scikit-learn (UCI) and 1,500 shapes of easy-VQA; never
on the pictures of the private and test files. How it was made: docs/embedded.md and training/.
"""


def record(
    picture: Picture, convention: Convention, rng: np.random.Generator, depth: str
) -> dict[str, str]:
    family = convention.family
    if family == "presence":
        there = bool(rng.random() < 0.5)
        asked = picture.shape if there else (picture.shape + int(rng.integers(1, 3))) % len(SHAPES)
        question, label = QUESTIONS[family][asked], int(there)
    else:
        questions = QUESTIONS[family]
        question, label = questions[rng.integers(len(questions))], getattr(picture, family)
    return {
        "image": f"{depth}images/{picture.source}/{picture.name}.png",
        "question": question,
        "answer": convention.answers[label],
    }


def write_jsonl(path: Path, rows: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")


def export_data(splits: dict[str, list[Picture]], target: Path) -> None:
    """Images, private/test/public files of each task, and the attributions."""
    shutil.rmtree(target, ignore_errors=True)
    rng = np.random.default_rng(11)
    public = [
        p
        for source in ("digits", "shapes")
        for p in [q for q in splits["train"] if q.source == source][:300]
    ]
    for picture in [*public, *splits["private"], *splits["test"]]:
        folder = target / "images" / picture.source
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.pixels).save(folder / f"{picture.name}.png", optimize=True)

    def of_family(pictures: list[Picture], convention: Convention) -> list[Picture]:
        chosen = [p for p in pictures if (p.digit is None) == (convention.family != "digit")]
        return [chosen[i] for i in rng.permutation(len(chosen))]

    for name in TASKS:
        rule, folder = BY_NAME[name], target / "tasks" / name
        rows = [record(p, rule, rng, "../../") for p in of_family(splits["private"], rule)]
        for row, number in zip(rows, rng.permutation(len(rows)), strict=True):
            row["unit"] = f"annotator-{number % ANNOTATORS:03d}"
        write_jsonl(folder / "private.jsonl", rows)
        tests = of_family(splits["test"], rule)
        write_jsonl(folder / "test.jsonl", [record(p, rule, rng, "../../") for p in tests])
        same = of_family(public, rule)[:PUBLIC_ROWS]
        write_jsonl(
            folder / "public-same-rule.jsonl", [record(p, rule, rng, "../../") for p in same]
        )
    others = [
        {**record(p, BY_NAME[name], rng, ""), "task": name}
        for name in PUBLIC_TASKS
        for p in of_family(public, BY_NAME[name])[:PUBLIC_ROWS]
    ]
    write_jsonl(target / "public.jsonl", others)
    (target / "ATTRIBUTION.md").write_text(ATTRIBUTION, "utf-8")


def export(
    model: torch.nn.Module, tokenizer: object, processor: object, splits: dict[str, list[Picture]]
) -> None:
    """The model as a standard Hugging Face folder in half precision, and the data beside it."""
    folder = EMBEDDED / "model"
    shutil.rmtree(folder, ignore_errors=True)
    model.half().save_pretrained(folder)
    processor.save_pretrained(folder)
    (folder / "README.md").write_text(CARD, "utf-8")
    export_data(splits, EMBEDDED / "data")
