"""Write the trained model and the demonstration data into the package."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from conventions import PUBLIC_TASKS, SOURCE, SUITE, Convention, Task
from pictures import Picture
from sequences import ask

EMBEDDED = Path(__file__).resolve().parent.parent / "src" / "dpmtv" / "embedded"
Row = dict[str, str]
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

An Idefics3 of 1.9 million parameters, made from nothing to show and test private task vectors on
a laptop. It answers questions about a handwritten digit or a drawn shape, by one of 76 rules that
it was trained on or in words that it never answered a picture with, and takes the rule from
demonstrations in its prompt or from a task vector. It knows nothing else: no other picture or
question means anything to it, and its vocabulary has 2,500 tokens. Trained on 390 digits of
scikit-learn (UCI) and 1,300 shapes of easy-VQA; never on the pictures of the public, private, test
and sealed files. How it was made, and its limits: docs/embedded.md and training/.
"""


def record(picture: Picture, rules: Sequence[Convention], rng: np.random.Generator) -> Row:
    """One clean record: a question of one of the rules' families, and that rule's answer."""
    rule = rules[rng.integers(len(rules))]
    question, label = ask(picture, rule.family, rng)
    image = f"images/{picture.source}/{picture.name}.png"
    return {"image": image, "question": question, "answer": rule.answers[label]}


def annotate(pictures: Sequence[Picture], task: Task, rng: np.random.Generator) -> list[Row]:
    """The private file: every record has an annotator; noisy tasks have noisy ones."""
    owners = rng.permutation(len(pictures)) % ANNOTATORS
    strange = set(rng.permutation(ANNOTATORS)[: round(task.noise * ANNOTATORS)].tolist())
    rows = []
    for picture, owner in zip(pictures, owners.tolist(), strict=True):
        if task.other and owner in strange:
            row = record(picture, (task.other,), rng)
        else:
            row = record(picture, task.rules, rng)
            if task.noise and not task.other and rng.random() < task.noise:
                wrong = sorted({a for r in task.rules for a in r.answers} - {row["answer"]})
                row["answer"] = wrong[rng.integers(len(wrong))]
        rows.append({**row, "unit": f"annotator-{owner:03d}"})
    return rows


def write_jsonl(path: Path, rows: list[Row], depth: int) -> None:
    """Image paths are written relative to the file, ``depth`` folders below the images."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**r, "image": "../" * depth + r["image"]} for r in rows]
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")


def export_data(splits: dict[str, list[Picture]], target: Path) -> None:
    """Images, the files of each task, the public file, the suite's table and the attributions."""
    shutil.rmtree(target, ignore_errors=True)
    for split in ("public", "private", "test", "sealed"):
        for picture in splits[split]:
            folder = target / "images" / picture.source
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture.pixels).save(folder / f"{picture.name}.png", optimize=True)

    def of(split: str, source: str, rng: np.random.Generator) -> list[Picture]:
        chosen = [p for p in splits[split] if p.source == source]
        return [chosen[i] for i in rng.permutation(len(chosen))]

    groups = {}
    for place, task in enumerate(SUITE):
        rng = np.random.default_rng([11, place])
        folder, source = target / "tasks" / task.name, SOURCE[task.rules[0].family]
        write_jsonl(folder / "private.jsonl", annotate(of("private", source, rng), task, rng), 2)
        for name, split, most in (
            ("test", "test", 100),
            ("sealed", "sealed", 300),
            ("public-same-rule", "public", PUBLIC_ROWS),
        ):
            rows = [record(p, task.rules, rng) for p in of(split, source, rng)[:most]]
            write_jsonl(folder / f"{name}.jsonl", rows, 2)
        groups[task.name] = task.group
    others = []
    for place, rule in enumerate(PUBLIC_TASKS):
        rng = np.random.default_rng([12, place])
        pictures = of("public", SOURCE[rule.family], rng)[:PUBLIC_ROWS]
        others += [{**record(p, (rule,), rng), "task": rule.name} for p in pictures]
    write_jsonl(target / "public.jsonl", others, 0)
    (target / "suite.json").write_text(json.dumps(groups, indent=1) + "\n", "utf-8")
    (target / "ATTRIBUTION.md").write_text(ATTRIBUTION, "utf-8")


def export_model(model: torch.nn.Module, processor: object, target: Path) -> None:
    """The model as a standard Hugging Face folder in half precision."""
    shutil.rmtree(target, ignore_errors=True)
    model.config.answer_instruction = ""  # trained on bare questions, unlike its family
    model.half().save_pretrained(target)
    processor.save_pretrained(target)
    (target / "README.md").write_text(CARD, "utf-8")
