"""The official files of eight public data sets, record by record.

Each reader takes the folder that a data set was unpacked into and one of its own splits. Files are
looked for there and up to three folders below, pictures anywhere below by their name, because every
archive and every mirror nests them differently. docs/benchmarks.md says where each layout and each
oddity is documented.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy.io import loadmat

from dpmtv.data.folders import PICTURES
from dpmtv.data.textfiles import open_file
from dpmtv.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

YES_NO = ("yes", "no")

# Not in the official archive, which numbers its classes from 1; from the page of its owners,
# https://www.robots.ox.ac.uk/~vgg/data/flowers/102/categories.html, in the order of the numbers.
FLOWERS = (
    *("pink primrose", "hard-leaved pocket orchid", "canterbury bells", "sweet pea"),
    *("english marigold", "tiger lily", "moon orchid", "bird of paradise", "monkshood"),
    *("globe thistle", "snapdragon", "colt's foot", "king protea", "spear thistle", "yellow iris"),
    *("globe-flower", "purple coneflower", "peruvian lily", "balloon flower"),
    *("giant white arum lily", "fire lily", "pincushion flower", "fritillary", "red ginger"),
    *("grape hyacinth", "corn poppy", "prince of wales feathers", "stemless gentian", "artichoke"),
    *("sweet william", "carnation", "garden phlox", "love in the mist", "mexican aster"),
    *("alpine sea holly", "ruby-lipped cattleya", "cape flower", "great masterwort", "siam tulip"),
    *("lenten rose", "barbeton daisy", "daffodil", "sword lily", "poinsettia"),
    *("bolero deep blue", "wallflower", "marigold", "buttercup", "oxeye daisy"),
    *("common dandelion", "petunia", "wild pansy", "primula", "sunflower", "pelargonium"),
    *("bishop of llandaff", "gaura", "geranium", "orange dahlia", "pink-yellow dahlia?"),
    *("cautleya spicata", "japanese anemone", "black-eyed susan", "silverbush"),
    *("californian poppy", "osteospermum", "spring crocus", "bearded iris", "windflower"),
    *("tree poppy", "gazania", "azalea", "water lily", "rose", "thorn apple", "morning glory"),
    *("passion flower", "lotus", "toad lily", "anthurium", "frangipani", "clematis", "hibiscus"),
    *("columbine", "desert-rose", "tree mallow", "magnolia", "cyclamen", "watercress"),
    *("canna lily", "hippeastrum", "bee balm", "ball moss", "foxglove", "bougainvillea"),
    *("camellia", "mallow", "mexican petunia", "bromelia", "blanket flower", "trumpet creeper"),
    "blackberry lily",
)


@dataclass(frozen=True)
class Found:
    """A record as its files give it.

    Args:
        fields: ``image`` or ``images``, and ``question`` with ``answer`` or ``answers`` (or
            ``label``, of a classification), as `dpmtv.data.rows` reads them; or why there are none.
        key: the picture it is about.
        seen: what the official evaluator looks at: the annotators' answers as they stand in the
            file, or "OPEN" or "CLOSED".
        place: where a container finds it again.
    """

    fields: dict[str, Any] | str
    key: str = "?"
    seen: Any = None
    place: tuple[int, ...] = ()


def vizwiz(root: Path, split: str) -> Iterator[Found]:
    """``train.json``, ``val.json``: a list; answers have no ids, and test.json has none at all."""
    where = pictures_below(root)
    for record in _json(one_file(root, f"{split}.json"), list):
        if not isinstance(record, dict):
            yield Found("not an object")
            continue
        name = str(record.get("image"))
        answers = record.get("answers")
        fields = {"image": where.get(name, name), "question": record.get("question")}
        yield Found({**fields, "answers": answers}, name, answers)


def textvqa(root: Path, split: str) -> Iterator[Found]:
    """``TextVQA_0.5.1_train.json``: records under ``data``, answers plain text, some of it empty.

    Pictures of train and val lie in one folder and have names without an ending in the file.
    """
    where = pictures_below(root)
    path = one_file(root, f"TextVQA_0.5.1_{split}.json")
    for record in _listed(_json(path, dict), "data", path):
        name = f"{record.get('image_id')}.jpg"
        answers = record.get("answers")
        fields = {"image": where.get(name, name), "question": record.get("question")}
        yield Found({**fields, "answers": answers}, name, answers)


def ok_vqa(root: Path, split: str) -> Iterator[Found]:
    """Questions and annotations as of VQA-v2, joined by ``question_id``; COCO's pictures."""
    where = pictures_below(root)
    questions = one_file(root, f"OpenEnded_mscoco_{split}2014_questions.json")
    annotations = one_file(root, f"mscoco_{split}2014_annotations.json")
    given = {
        str(a.get("question_id")): a.get("answers")
        for a in _listed(_json(annotations, dict), "annotations", annotations)
    }
    for record in _listed(_json(questions, dict), "questions", questions):
        image = str(record.get("image_id"))
        name = f"COCO_{split}2014_{image.zfill(12)}.jpg"
        answers = given.get(str(record.get("question_id")))
        fields = {"image": where.get(name, name), "question": record.get("question")}
        yield Found({**fields, "answers": answers}, name, answers)


def vqa_rad(root: Path, split: str) -> Iterator[Found]:
    """``VQA_RAD Dataset Public.json``: one list; ``phrase_type`` tells the test questions.

    Answer types come with stray spaces, answers as numbers or with a tab at their end.
    """
    where = pictures_below(root)
    for record in _json(one_file(root, "VQA_RAD Dataset Public.json"), list):
        if not isinstance(record, dict):
            yield Found("not an object")
        elif str(record.get("phrase_type")).startswith("test") == (split == "test"):
            name = str(record.get("image_name"))
            answer = record.get("answer")
            fields = {
                "image": where.get(name, name),
                "question": record.get("question"),
                "answer": answer.strip() if isinstance(answer, str) else answer,
            }
            yield Found(fields, name, str(record.get("answer_type")).strip().upper())


def path_vqa(root: Path, split: str) -> Iterator[Found]:
    """``train_qa.pkl``: a pickled list; a question is closed if its answer is yes or no."""
    where = pictures_below(root)
    for record in _pickled(one_file(root, f"{split}_qa.pkl")):
        name = f"{record.get('image')}.jpg"
        asked = {part: record.get(part) for part in ("question", "answer")}
        yield Found({"image": where.get(name, name), **asked}, name, kind_of(asked["answer"]))


def flowers(root: Path, split: str) -> Iterator[Found]:
    """``imagelabels.mat`` and ``setid.mat``; picture 1 is ``jpg/image_00001.jpg``."""
    labels, sets = (
        _matlab(one_file(root, name), wanted)
        for name, wanted in (("imagelabels.mat", "labels"), ("setid.mat", split))
    )
    where = pictures_below(root)
    for number in sets:
        name = f"image_{number:05d}.jpg"
        label = labels[number - 1] if 0 < number <= len(labels) else 0
        if not 0 < label <= len(FLOWERS):
            raise DataError(f"{root}: imagelabels.mat has no class 1 to 102 for {name}.")
        yield Found({"image": where.get(name, name), "label": FLOWERS[label - 1]}, name)


def cub(root: Path, split: str) -> Iterator[Found]:
    """``images.txt``, ``image_class_labels.txt``, ``classes.txt``, ``train_test_split.txt``."""
    listed = one_file(root, "images.txt")
    base = listed.parent
    paths, classes = _pairs(listed), _pairs(base / "classes.txt")
    of, training = _pairs(base / "image_class_labels.txt"), _pairs(base / "train_test_split.txt")
    for number, path in paths.items():
        if (training.get(number) == "1") == (split == "train"):
            label = re.sub(r"^\d+\.", "", classes.get(of.get(number, ""), "")).replace("_", " ")
            image = os.path.join(os.path.relpath(base, root), "images", path)
            yield Found({"image": image, "label": label}, path)


def dtd(root: Path, split: str) -> Iterator[Found]:
    """``labels/train1.txt``: the first of ten official partitions, as everywhere."""
    listed = one_file(root, f"{split}1.txt")
    base = os.path.relpath(listed.parent.parent, root)
    for line in _lines(listed):
        label = line.split("/")[0].replace("_", " ")
        yield Found({"image": os.path.join(base, "images", line), "label": label}, line)


def triples(root: Path, path: Path) -> Iterator[Found]:
    """MTV's 2-way 1-shot files: ``pos`` and ``query`` are of one class, ``neg`` of another.

    Paths in them are those of another machine: pictures are found by their names.
    """
    where = pictures_below(root)
    for record in _json(path, list):
        if not isinstance(record, dict):
            yield Found("not an object")
            continue
        names = [os.path.basename(str(record.get(part))) for part in ("pos", "neg", "query")]
        images = [where.get(name, name) for name in names]
        labels = record.get("pos_label"), record.get("neg_label")
        yield Found({"images": images, "label": labels[0], "other": labels[1]}, names[2])


def kind_of(answer: Any) -> str:
    """Closed where the answer is yes or no, as LLaVA-Med has it where a data set does not say."""
    return "CLOSED" if str(answer).strip().lower() in YES_NO else "OPEN"


def one_file(root: Path, name: str) -> Path:
    """The file of that name in the folder, or up to three folders below.

    Raises:
        DataError: there is none, or there are several at one depth.
    """
    for level in ("", "*/", "*/*/", "*/*/*/"):
        found = sorted(root.glob(level + name)) if os.path.isdir(root) else []
        if len(found) > 1:
            raise DataError(f"{root} has several files {name}: name the folder of one of them.")
        if found:
            return found[0]
    raise DataError(f"{root} holds no {name}. docs/benchmarks.md says which files it should have.")


def pictures_below(root: Path) -> dict[str, str]:
    """File name of every picture below a folder → its path from there; the topmost of equals."""
    found: dict[str, str] = {}
    for folder, inside, names in os.walk(root, followlinks=True):
        inside.sort()
        for name in sorted(names):
            if os.path.splitext(name)[1].lower() in PICTURES:
                found.setdefault(name, os.path.relpath(os.path.join(folder, name), root))
    return found


def _json(path: Path, kind: type) -> Any:
    value = None
    try:
        with open_file(path) as file:
            value = json.loads(file.read().decode("utf-8-sig"))
    except (ValueError, RecursionError):
        pass
    if not isinstance(value, kind):
        raise DataError(f"{path} is not the JSON {kind.__name__} that it should be.")
    return value


def _listed(value: dict[str, Any], name: str, path: Path) -> list[dict[str, Any]]:
    records = value.get(name)
    if not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
        raise DataError(f"{path} has no list of objects called {name}.")
    return records


def _pairs(path: Path) -> dict[str, str]:
    return {number: rest for number, _, rest in (line.partition(" ") for line in _lines(path))}


def _lines(path: Path) -> list[str]:
    with open_file(path) as file:
        text = file.read().decode("utf-8-sig", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


class _Plain(pickle.Unpickler):
    """A pickle may call any function when it is read; this one may call none."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError


def _pickled(path: Path) -> list[dict[str, Any]]:
    value = None
    with open_file(path, packed=True) as file:
        try:
            value = _Plain(file).load()
        except Exception:  # what a damaged pickle raises is not limited to its own errors
            value = None
    if not isinstance(value, list) or not all(isinstance(record, dict) for record in value):
        raise DataError(f"{path} is not a pickled list of plain records; nothing else is read.")
    return value


def _matlab(path: Path, name: str) -> list[int]:
    open_file(path, packed=True).close()
    try:
        values: list[int] = loadmat(path)[name].ravel().astype(int).tolist()
    except Exception:  # scipy raises many kinds on damaged files
        values = []
    if not values:
        raise DataError(f"{path} cannot be read as MATLAB's, or holds no {name}.")
    return values
