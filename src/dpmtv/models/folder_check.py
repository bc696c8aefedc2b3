"""What of a model's folder cannot be loaded, in words that say what to do. Nothing of it is run."""

from __future__ import annotations

import codecs
import json
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from dpmtv.errors import ModelError

_AGAIN = "copy or download it again"
# In the order in which transformers looks for them.
_WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
_SMALL = (
    *("generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("video_preprocessor_config.json", "tokenizer_config.json", "tokenizer.json"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.json", "vocab.json"),
)
_VOCABULARIES = {"tokenizer.json", "vocab.json", "vocab.txt", "tekken.json"}
_VOCABULARY_ENDS = {".model", ".tiktoken", ".spm"}
_OTHER_WEIGHTS = {
    ".gguf": "is a GGUF file, for other programs: take the checkpoint that it was made from",
    ".safetensors": "has another name",
    ".bin": "has another name",
    **dict.fromkeys((".pth", ".pt", ".ckpt"), "is a pickle in another layout than transformers'"),
    **dict.fromkeys((".h5", ".msgpack", ".onnx"), "is for other libraries than torch"),
}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a checkpoint.

    Raises:
        ModelError: it is not there, no UTF-8, no JSON, or no object.
    """
    _refuse_stand_in(path)
    data = path.read_bytes()
    if data.startswith(codecs.BOM_UTF8):
        raise ModelError(f"{path} begins with a byte order mark: save it as UTF-8 without one")
    try:
        known: Any = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8: save it in that encoding") from error
    except json.JSONDecodeError as error:
        raise ModelError(
            f"{path}, line {error.lineno}, column {error.colno}, is no JSON ({error.msg}): mend "
            f"it, or {_AGAIN}"
        ) from error
    if not isinstance(known, dict):
        raise ModelError(f"{path} holds no JSON object ({{…}}) but a {type(known).__name__}")
    return known


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model.

    Raises:
        ModelError: as `read_json`; or there is none, and what the folder seems to be instead.
    """
    path = folder / "config.json"
    if not path.is_file() and not path.is_symlink():
        raise ModelError(f"{folder} is a folder without config.json, not a model{_instead(folder)}")
    return read_json(path)


def check_config(known: dict[str, Any], path: Path) -> None:
    """Refuse what transformers would guess or pass over: no model type, an unknown quantisation.

    Raises:
        ModelError: such.
    """
    from transformers import CONFIG_MAPPING
    from transformers.quantizers.auto import AutoHfQuantizer

    name = known.get("model_type")
    if "auto_map" not in known and name not in CONFIG_MAPPING:
        raise ModelError(
            f"{path} names no model_type, by which its architecture is known"
            if name is None
            else f"{path}: transformers {version('transformers')} has no model_type {name!r}; a "
            "newer version may, if it is spelt right"
        )
    for how in (
        part.get("quantization_config")
        for part in (known, *known.values())
        if isinstance(part, dict)
    ):
        if how is None:
            continue
        method = how.get("quant_method") if isinstance(how, dict) else how
        try:
            is_known = AutoHfQuantizer.supports_quant_method(how)  # type: ignore[no-untyped-call]
        except (ValueError, AttributeError):
            is_known = False
        if not is_known:
            raise ModelError(
                f"{path}: the weights are quantised by a method that transformers "
                f"{version('transformers')} does not know (quant_method: {method!r}), so they "
                "cannot be read. Take the checkpoint that is not quantised; bits=4 quantises that"
            )


def check_images(config: Any) -> None:
    """Refuse a configuration that is of no image-text-to-text model.

    Raises:
        ModelError: such.
    """
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    )

    kind, own = type(config), getattr(config, "auto_map", None) or {}
    if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING or "AutoModelForImageTextToText" in own:
        return
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING:
        what = "is a language model for text alone"
    elif own:
        what = "brings code of its own that has no AutoModelForImageTextToText"
    else:
        what = "answers no questions about pictures"
    raise ModelError(f"{config.model_type} {what}; `dpmtv models` lists families that can be used")


def read_parts(folder: Path) -> dict[str, dict[str, Any]]:
    """The small JSON files that are there, by name.

    Raises:
        ModelError: one cannot be read; some of them transformers would pass over in silence.
    """
    return {name: read_json(folder / name) for name in _SMALL if _is_there(folder / name)}


def check_parts(folder: Path) -> None:
    """Refuse a folder that lacks a tokenizer or an image processor.

    Raises:
        ModelError: it does, or as `read_parts`.
    """
    found = read_parts(folder)
    check_tokenizer(folder)
    nested = "image_processor" in found.get("processor_config.json", {})
    if "preprocessor_config.json" not in found and not nested:
        raise ModelError(
            f"{folder} does not say how pictures are prepared: preprocessor_config.json is "
            "missing. Copy that of the model that it was made from"
        )


def check_tokenizer(folder: Path) -> None:
    """Refuse a folder without one; some classes of transformers would begin with no tokens.

    Raises:
        ModelError: there is none.
    """
    files = folder.iterdir()
    if not any(p.name in _VOCABULARIES or p.suffix in _VOCABULARY_ENDS for p in files):
        raise ModelError(
            f"{folder} has no tokenizer: none of {', '.join(sorted(_VOCABULARIES))}, nor *.model. "
            "Copy those of the model that it was made from"
        )


def check_weights(folder: Path) -> None:
    """Refuse weights that are not all there, as transformers would look for them.

    Raises:
        ModelError: a file is missing, cut off, or something else.
    """
    first = next((folder / name for name in _WEIGHTS if _is_there(folder / name)), None)
    if first is None:
        raise ModelError(_no_weights(folder))
    if first.suffix != ".json":
        _check_file(first)
        return
    where = read_json(first).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise ModelError(f"{first} says of no tensor which file it is in (weight_map): {_AGAIN}")
    files = sorted({str(name) for name in where.values()})
    if missing := [name for name in files if not _is_there(folder / name)]:
        raise ModelError(
            f"{folder} lacks {len(missing)} of the {len(files)} files that {first.name} names: "
            f"{_some(missing)}. Download them, too"
        )
    for name in files:
        _check_file(folder / name)


def _check_file(path: Path) -> None:
    _refuse_stand_in(path)
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, "np"):
                return
        except SafetensorError as error:
            raise ModelError(
                f"{path} cannot be read, being cut off or damaged ({error}): {_AGAIN}"
            ) from error
    with path.open("rb") as file:
        begin = file.read(2)
    if not (zipfile.is_zipfile(path) if begin == b"PK" else begin[:1] == b"\x80"):
        raise ModelError(f"{path} cannot be read, being cut off or damaged: {_AGAIN}")


def _is_there(path: Path) -> bool:
    return path.is_file() or path.is_symlink()


def _refuse_stand_in(path: Path) -> None:
    """Refuse what stands in a file's place after a copy or download went wrong."""
    if path.is_symlink() and not path.exists():
        raise ModelError(
            f"{path} is a link to a file that is not here: copy the folder with what its links "
            "point to (cp -rL), or download it again"
        )
    if not path.is_file():
        raise ModelError(f"{path} is missing")
    with path.open("rb") as file:
        begin = file.read(64)
    if not begin:
        raise ModelError(f"{path} is empty: {_AGAIN}")
    if begin.startswith(b"version https://git-lfs"):
        raise ModelError(
            f"{path} is a Git LFS pointer, not the file: run `git lfs pull` in the folder, or "
            "download it again"
        )
    if begin.lstrip().startswith(b"<"):
        raise ModelError(f"{path} is a web page, not the file: download it again")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _instead(folder: Path) -> str:
    """What a folder without config.json seems to be."""
    names = sorted(path.name for path in folder.iterdir())
    inside = [
        p.parent for p in (*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json"))
    ]
    gguf = [name for name in names if name.endswith(".gguf")]
    if not names:
        return ": it is empty"
    if "adapter_config.json" in names:
        return (
            ": it is an adapter (PEFT). Merge it into its model (merge_and_unload), and save that "
            "with its processor"
        )
    if "certificate.json" in names:
        return ": it is a task vector; name the model that it was made for"
    if inside:
        return f". There is one in {_some(sorted(map(str, inside)))}"
    if gguf:
        return f": {gguf[0]} {_OTHER_WEIGHTS['.gguf']}"
    if not {"params.json", "model_index.json"}.isdisjoint(names):
        return ": it is in another layout than transformers'; take the checkpoint in that one"
    return "; it lies beside the weights"


def _no_weights(folder: Path) -> str:
    others = sorted(p.name for p in folder.iterdir() if p.suffix in _OTHER_WEIGHTS)
    shards = [name for name in others if "-of-" in name]
    why = f"{folder} has no weights: none of {', '.join(_WEIGHTS)}"
    if shards:
        index = f"{shards[0].partition('-0')[0]}{Path(shards[0]).suffix}.index.json"
        return f"{why}. {index}, which says which of the files a tensor is in, is missing"
    if others:
        return f"{why}. {others[0]} {_OTHER_WEIGHTS[Path(others[0]).suffix]}"
    return f"{why}. Download them, too"
