"""Eight public data sets in little: made-up records and drawn pictures in the official layouts.

Schemas, file names and oddities are those of the real files (docs/benchmarks.md); no picture,
question or answer is.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from scipy.io import savemat

COLOURS = ("red", "green", "blue", "orange")


def draw(path: Path, number: int) -> None:
    """A disc in one of four colours, its place and size by the number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(number).save(path)


def picture(number: int) -> Image.Image:
    image = Image.new("RGB", (36, 28), "white")
    left = 2 + number % 9
    shape = (left, 4, left + 14 + number % 5, 20 + number % 5)
    ImageDraw.Draw(image).ellipse(shape, fill=COLOURS[number % 4])
    return image


def colour(number: int) -> str:
    return COLOURS[number % 4]


def _write(path: Path, value: Any, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding=encoding)


def vizwiz(root: Path) -> Path:
    for split, count in (("train", 40), ("val", 8), ("test", 3)):
        records: list[dict[str, Any]] = []
        for n in range(count):
            name = f"VizWiz_{split}_{n:08d}.jpg"
            draw(root / split / name, n)
            record = {"image": name, "question": "What colour is it?\n"}
            if split != "test":  # its answers are not published
                said = [colour(n)] * 6 + ["unanswerable"] * 3 + ["café au lait"]
                sure = ["yes", "maybe", "no"]
                record |= {
                    "answers": [
                        {"answer_confidence": sure[i % 3], "answer": a} for i, a in enumerate(said)
                    ],
                    "answer_type": "other",
                    "answerable": 1,
                }
            records.append(record)
        _write(root / "Annotations" / f"{split}.json", records)
    return root


def textvqa(root: Path) -> Path:
    for split, count in (("train", 40), ("val", 8)):
        data = []
        for n in range(count):
            name = f"{split}{n:012x}"
            draw(root / "train_images" / f"{name}.jpg", n)  # of val too, as in the real archive
            said = [colour(n).upper(), *[colour(n)] * 8, ""]
            data.append(
                {
                    "question_id": 34600 + n,
                    "image_id": name,
                    "question": "what colour is written?",
                    "answers": said,
                    "image_classes": ["Disc"],
                    "flickr_original_url": "https://example.org/x.jpg",
                    "image_width": 36,
                    "image_height": 28,
                    "question_tokens": ["what"],
                    "set_name": split,
                }
            )
        info = {"dataset_type": split, "dataset_name": "textvqa", "dataset_version": "0.5.1"}
        _write(root / f"TextVQA_0.5.1_{split}.json", {**info, "data": data}, "utf-8-sig")
    return root


def ok_vqa(root: Path) -> Path:
    for split, count in (("train", 40), ("val", 8)):
        questions, annotations = [], []
        for n in range(count):
            draw(root / f"{split}2014" / f"COCO_{split}2014_{51606 + n:012d}.jpg", n)
            key = {"image_id": 51606 + n, "question_id": 516065 + 10 * n}
            questions.append({**key, "question": "What fruit has this colour?"})
            said = [colour(n)] * 8 + ["poni tail"] * 2
            answers = [
                {"answer_id": i + 1, "raw_answer": a, "answer_confidence": "yes", "answer": a}
                for i, a in enumerate(said)
            ]
            annotations.append(
                {
                    **key,
                    "answer_type": "other",
                    "question_type": "four",
                    "answers": answers,
                    "confidence": 3,
                }
            )
        info = {"info": {"version": "1.1"}, "license": {}, "data_subtype": f"{split}2014"}
        _write(
            root / f"OpenEnded_mscoco_{split}2014_questions.json", {**info, "questions": questions}
        )
        annotations.reverse()  # joined by id, not by place
        _write(root / f"mscoco_{split}2014_annotations.json", {**info, "annotations": annotations})
    return root


def vqa_rad(root: Path) -> Path:
    records = []
    phrases = ["freeform"] * 20 + ["para"] * 10 + ["test_freeform"] * 6 + ["test_para"] * 2
    for n, phrase in enumerate(phrases):
        name = f"synpic{n // 2 + 100}.jpg"  # two questions a picture
        draw(root / "VQA_RAD Image Folder" / name, n // 2)
        closed = n % 2 == 0
        records.append(
            {
                "qid": n,
                "phrase_type": phrase,
                "qid_linked_id": "03f451ca-de62-4617-9679-e836026a7642",
                "image_case_url": f"https://example.org/{name}",
                "image_name": name,
                "image_organ": "HEAD",
                "evaluation": "not evaluated",
                "question": f"Is it {COLOURS[0]}?" if closed else "How many regions are there?",
                "question_rephrase": "NULL",
                "question_relation": "NULL",
                "question_frame": "NULL",
                "question_type": "PRES",
                "answer": ("Yes" if n // 2 % 4 == 0 else "No ") if closed else 3,
                "answer_type": "CLOSED " if closed else "OPEN",
            }
        )
    _write(root / "VQA_RAD Dataset Public.json", records)
    return root


def path_vqa(root: Path) -> Path:
    for split, count in (("train", 20), ("val", 8), ("test", 8)):
        records = []
        for n in range(count):
            name = f"{split}_{n // 2:04d}"
            draw(root / "pvqa/images" / split / f"{name}.jpg", n // 2)
            closed = n % 2 == 0
            records.append(
                {
                    "image": name,
                    "question": f"is it {COLOURS[0]}?" if closed else "what is seen?",
                    "answer": ("yes" if n // 2 % 4 == 0 else "no") if closed else colour(n // 2),
                }
            )
        path = root / "pvqa/qas" / split / f"{split}_qa.pkl"
        path.parent.mkdir(parents=True)
        path.write_bytes(pickle.dumps(records))
    return root


def flowers(root: Path) -> Path:
    labels = np.array([[n % 4 + 1 for n in range(36)]], dtype=np.uint8)
    for n in range(36):
        draw(root / "jpg" / f"image_{n + 1:05d}.jpg", n)
    savemat(root / "imagelabels.mat", {"labels": labels})
    ids = np.arange(1, 37, dtype=np.uint16)
    sets = {"trnid": ids[None, :20], "valid": ids[None, 20:28], "tstid": ids[None, 28:]}
    savemat(root / "setid.mat", sets)
    return root


def cub(root: Path) -> Path:
    base = root / "CUB_200_2011"
    names = [f"{n + 1:03d}.{c.title()}_breasted_Disc" for n, c in enumerate(COLOURS)]
    images, labels, split = [], [], []
    for n in range(48):
        path = f"{names[n % 4]}/{colour(n).title()}_{n:04d}.jpg"
        draw(base / "images" / path, n)
        images.append(f"{n + 1} {path}")
        labels.append(f"{n + 1} {n % 4 + 1}")
        split.append(f"{n + 1} {int(n < 40)}")
    for name, content in (
        ("images.txt", images),
        ("image_class_labels.txt", labels),
        ("train_test_split.txt", split),
        ("classes.txt", [f"{n + 1} {name}" for n, name in enumerate(names)]),
    ):
        (base / name).write_text("\r\n".join(content) + "\r\n")
    return root


def dtd(root: Path) -> Path:
    names = ("polka-dotted", "banded", "zigzagged", "woven")
    (root / "dtd/labels").mkdir(parents=True)
    for split, first, last in (("train", 0, 20), ("val", 20, 28), ("test", 28, 36)):
        lines = []
        for n in range(first, last):
            lines.append(f"{names[n % 4]}/{names[n % 4]}_{n:04d}.jpg")
            draw(root / "dtd/images" / lines[-1], n)
        (root / f"dtd/labels/{split}1.txt").write_text("\n".join(lines) + "\n")
        (root / f"dtd/labels/{split}2.txt").write_text("other/partition.jpg\n")
    return root


def triples(root: Path) -> Path:
    """MTV's files for Flowers102, with the paths of another machine."""
    for split, count in (("train", 20), ("test", 6)):
        records = []
        for n in range(count):
            parts = {}
            for part, number in (("pos", n), ("neg", n + 1), ("query", n + 4)):
                name = f"image_{number:05d}.jpg"
                draw(root / "jpg" / name, number)
                parts[part] = f"/home/someone/flowers/jpg/{name}"
            records.append({**parts, "pos_label": colour(n), "neg_label": colour(n + 1)})
        _write(root / "flower" / f"flower_{split}.json", records)
    return root


MAKERS = {
    "vizwiz": vizwiz,
    "vqa-rad": vqa_rad,
    "path-vqa": path_vqa,
    "ok-vqa": ok_vqa,
    "textvqa": textvqa,
    "flowers102": flowers,
    "cub-200": cub,
    "dtd": dtd,
}


def hub_copy(name: str, root: Path) -> Path:
    """The same set as `datasets` saves its copy on the Hub."""
    import datasets

    def table(first: int, rows: list[dict[str, Any]], **kinds: Any) -> Any:
        features = datasets.Features({"image": datasets.Image(), **kinds})
        return datasets.Dataset.from_list(
            [{"image": picture(n), **row} for n, row in enumerate(rows, start=first)],
            features=features,
        )

    text, many = datasets.Value("string"), datasets.Sequence(datasets.Value("string"))
    starts = {"train": 0, "validation": 60, "val": 0, "val2014": 0, "test": 100}
    counts = {"train": 20, "validation": 8, "val": 40, "val2014": 40, "test": 8}
    splits = {
        "vizwiz": ("val",),
        "ok-vqa": ("val2014",),
        "textvqa": ("train", "validation"),
        "path-vqa": ("train", "validation", "test"),
        "flowers102": ("train", "validation", "test"),
    }.get(name, ("train", "test"))
    made = {}
    for split in splits:
        first, places = starts[split], range(counts[split])
        if name in ("vizwiz", "ok-vqa", "textvqa"):
            rows = [
                {"question_id": str(n), "question": "which?", "answers": [colour(n)] * 10}
                for n in places
            ]
            made[split] = table(first, rows, question_id=text, question=text, answers=many)
        elif name in ("vqa-rad", "path-vqa"):
            answers = [("yes", colour(n))[n % 2] for n in places]
            rows = [{"question": "which?", "answer": answer} for answer in answers]
            made[split] = table(first, rows, question=text, answer=text)
        else:
            label = datasets.ClassLabel(
                names=[f"{i + 1:03d}.{c}_Bird" for i, c in enumerate("ABCD")]
            )
            made[split] = table(first, [{"label": n % 4} for n in places], label=label)
    datasets.DatasetDict(made).save_to_disk(root / "saved")
    return root / "saved"
