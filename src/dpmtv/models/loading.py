"""Read a checkpoint: configuration, processor and weights, or the reason why not."""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from dpmtv.errors import ModelError
from dpmtv.models.processors import load_processor
from dpmtv.models.projections import refuse_encoder_decoder
from dpmtv.models.weights import load_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

EMBEDDED = Path(__file__).resolve().parent.parent / "embedded" / "model"

# Model types that transformers lacks → the package whose `load` reads their folders, and whose
# `FILES` says what belongs to them on the hub, beside weights in the folder itself.
NATIVE = {"llava_llama": "dpmtv.models.vila", "qwen": "dpmtv.models.qwen_vl"}

_ONE_PICTURE = {"git", "instructblip"}
_UNLOADABLE = (
    *(OSError, ValueError, KeyError, ImportError, AttributeError, TypeError),
    *(UnpicklingError, SafetensorError),
)
_DTYPES = ("auto", "float32", "bfloat16", "float16")
_IDENTITY_FILES = {
    *(".safetensors", ".bin", ".json", ".jinja", ".model", ".tiktoken", ".txt", ".py"),
}


def load_parts(
    name: str | Path,
    *,
    revision: str | None,
    dtype: str,
    device: str | None,
    device_map: str | None,
    bits: int | None,
    attention: str | None,
    trust_remote_code: bool,
) -> tuple[Any, Any, Path | None]:
    """(model on its device, processor, folder or None for a hub id); see `load_model`.

    Raises:
        ModelError: not there, or not a vision-language model that can be patched.
    """
    import transformers

    target = EMBEDDED if str(name) == "embedded" else Path(name)
    local = target.is_dir()
    source = str(target) if local else str(name)
    if local and not (target / "config.json").is_file():
        raise ModelError(f"{name} is a folder without config.json, not a model")
    if dtype not in _DTYPES:
        raise ModelError(f"dtype must be one of {', '.join(_DTYPES)}, not {dtype}")
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if dtype == "auto" and "cpu" in (place.partition(":")[0], device_map):
        dtype = "float32"  # from the start: what modules make of their type stays as it is
    options: dict[str, Any] = {"dtype": dtype if dtype == "auto" else getattr(torch, dtype)}
    if bits is not None:
        options |= _quantised(bits, place)
    if device_map is not None:
        _require("accelerate", "device_map")
        options["device_map"] = device_map
    if attention is not None:
        options["attn_implementation"] = attention
    try:
        model_type, commit = _of_config_file(source, revision)
        revision = commit or revision  # a branch may move between one file and the next
        native = NATIVE.get(model_type)
        if native:
            package = import_module(native)
            folder = target if local else _downloaded(source, revision, package.FILES)
            model, processor = package.load(folder, options)
        else:
            where = {"revision": revision, "trust_remote_code": trust_remote_code}
            config: Any = transformers.AutoConfig.from_pretrained(source, **where)
            refuse_encoder_decoder(config, config.model_type)
            if config.model_type in _ONE_PICTURE:
                raise ModelError(
                    f"{config.model_type} takes one picture a prompt, so no demonstration can be "
                    "shown"
                )
            processor = load_processor(source, config, where)
            auto = transformers.AutoModelForImageTextToText
            model = load_weights(auto, source, **where, **options)
        model.config._commit_hash = commit
    except _UNLOADABLE as error:
        kind = "folder" if local else "hub id or folder"
        raise ModelError(f"cannot load {kind} {name}: {_reason(error)}") from error
    if "device_map" not in options:
        model = model.to(place)
    return model, processor, target if local else None


def _downloaded(name: str, revision: str | None, files: Sequence[str]) -> Path:
    """A hub checkpoint's folder: ``files``, and weights as safetensors, else as .bin.

    All of one commit, which is the folder's name. With HF_HUB_OFFLINE only what is there already.
    """
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))
    for kind in ("model*.safetensors", "pytorch_model*.bin"):
        patterns = [kind, f"{kind}.index.json".replace("*", "", 1)]
        snapshot_download(name, revision=folder.name, allow_patterns=patterns)
        if any(folder.glob(kind)):
            break
    return folder


def _of_config_file(source: str, revision: str | None) -> tuple[str, str | None]:
    """The model type, and the commit that ``revision`` of a hub repository is now."""
    from transformers.utils.hub import cached_file

    path = Path(str(cached_file(source, "config.json", revision=revision)))
    known: Any = json.loads(path.read_text("utf-8"))
    return str(known.get("model_type")), None if Path(source).is_dir() else path.parent.name


def hash_files(folder: Path) -> str:
    """SHA-256 over names and bytes: weights, configuration, tokenizer, processor, code.

    Those in folders inside, too, where some families have their weights; not hidden ones.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in name.parts)
        if path.suffix in _IDENTITY_FILES and path.is_file() and not hidden:
            digest.update(name.as_posix().encode() + b"\0")
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _quantised(bits: int, place: str) -> dict[str, Any]:
    """Options that load weights in 4 or 8 bits.

    Raises:
        ModelError: the packages that do it are not installed.
    """
    import transformers

    if bits not in (4, 8):
        raise ModelError(f"bits={bits}: weights can be loaded in 4 or 8 bits")
    _require("bitsandbytes", f"bits={bits}")
    _require("accelerate", f"bits={bits}")
    config = transformers.BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=bits == 4, load_in_8bit=bits == 8
    )
    return {"quantization_config": config, "device_map": {"": place}}


def _require(package: str, option: str) -> None:
    if find_spec(package) is None:
        raise ModelError(f"{option} needs the package {package}: pip install {package}")


def _reason(error: Exception) -> str:
    """An error of transformers in one line, with what helps."""
    text = str(error).strip()
    first = (text.splitlines() or [type(error).__name__])[0][:300]
    if "torchvision" in text.lower():
        return "its image processor is made for torchvision alone: pip install torchvision"
    if "trust_remote_code" in text:
        return (
            "it brings Python code of its own. If you have read it and trust it: "
            "trust_remote_code=True (command line: --model-option trust_remote_code=true)"
        )
    if "weights_only" in text:
        return "a .bin file holds more than tensors, which could run code when it is read"
    return first
