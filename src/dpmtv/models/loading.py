"""Read a checkpoint: configuration, processor and weights, or the reason why not."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from dpmtv.errors import ModelError
from dpmtv.models.folder_check import (
    check_config,
    check_images,
    check_parts,
    check_weights,
    read_config,
    read_parts,
)
from dpmtv.models.places import EMBEDDED as EMBEDDED
from dpmtv.models.places import Place, find_model
from dpmtv.models.processors import load_processor
from dpmtv.models.projections import refuse_encoder_decoder
from dpmtv.models.weights import load_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Model types that transformers lacks → the package whose `load` reads their folders, and whose
# `FILES` says what belongs to them on the hub, beside weights in the folder itself.
NATIVE = {"llava_llama": "dpmtv.models.vila", "qwen": "dpmtv.models.qwen_vl"}

_ONE_PICTURE = {"git", "instructblip"}
_UNLOADABLE = (
    *(OSError, ValueError, KeyError, ImportError, AttributeError, TypeError),
    *(UnpicklingError, SafetensorError, StrictDataclassError),
)
_NOT_GREEDY = (
    *("num_beams", "num_beam_groups", "constraints", "force_words_ids", "penalty_alpha"),
    *("dola_layers", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp"),
)
_DTYPES = ("auto", "float32", "bfloat16", "float16")
_IDENTITY_FILES = {
    *(".safetensors", ".bin", ".json", ".jinja", ".model", ".tiktoken", ".txt", ".py"),
}


@contextmanager
def _no_question() -> Iterator[None]:
    """Keep transformers from asking at the terminal whether to run code: it refuses at once.

    It asks where it was not told, and it does not hand on to all parts what it was told.
    """
    from transformers import dynamic_module_utils as asking

    before = asking.TIME_OUT_REMOTE_CODE
    vars(asking)["TIME_OUT_REMOTE_CODE"] = 0
    try:
        yield
    finally:
        vars(asking)["TIME_OUT_REMOTE_CODE"] = before


@_no_question()
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

    found = find_model(name, revision)
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
    at = None
    try:
        at, commit = _read_commit(found, revision)
        revision = commit or revision  # a branch may move between one file and the next
        known = read_config(at)
        native = NATIVE.get(str(known.get("model_type")))
        if native:
            package = import_module(native)
            inside = found.folder or _downloaded(found, revision, package.FILES)
            model, processor = package.load(inside, options)
        else:
            check_config(known, at / "config.json")
            where = {"revision": revision, "trust_remote_code": trust_remote_code}
            where["local_files_only"] = found.cached
            config: Any = transformers.AutoConfig.from_pretrained(found.source, **where)
            refuse_encoder_decoder(config, config.model_type)
            if config.model_type in _ONE_PICTURE:
                raise ModelError(
                    f"{config.model_type} takes one picture a prompt, so no demonstration can "
                    "be shown"
                )
            check_images(config)
            if attention is None and not trust_remote_code:
                _refuse_kernels(config)
            if found.folder:
                (read_parts if trust_remote_code else check_parts)(found.folder)
            if found.folder and not hasattr(config, "transformers_weights"):
                check_weights(found.folder)
            processor = load_processor(found.source, config, where)
            auto = transformers.AutoModelForImageTextToText
            model = load_weights(auto, found.source, **where, **options)
        model.config._commit_hash = commit
    except _UNLOADABLE as error:
        if at and isinstance(error, ValueError) and not found.folder:
            check_parts(at)
        kind = "folder" if found.folder else "hub id"
        raise ModelError(f"cannot load {kind} {name}: {_reason(error)}") from error
    _answer_greedily(model.generation_config)
    if "device_map" not in options:
        model = model.to(place)
    return model, processor, found.folder


def _downloaded(found: Place, revision: str | None, files: Sequence[str]) -> Path:
    """A hub checkpoint's folder: ``files``, and weights as safetensors, else as .bin.

    All of one commit, which is the folder's name. Without a hub only what is there already.
    """
    from huggingface_hub import snapshot_download

    def get(revision: str | None, patterns: Sequence[str]) -> Path:
        return Path(
            snapshot_download(
                found.source,
                revision=revision,
                allow_patterns=list(patterns),
                local_files_only=found.cached,
            )
        )

    folder = get(revision, files)
    for kind in ("model*.safetensors", "pytorch_model*.bin"):
        get(folder.name, [kind, f"{kind}.index.json".replace("*", "", 1)])
        if any(folder.glob(kind)):
            break
    return folder


def _read_commit(found: Place, revision: str | None) -> tuple[Path, str | None]:
    """The folder of config.json, and the commit that ``revision`` of a hub repository is now."""
    from transformers.utils.hub import cached_file

    if found.folder:
        return found.folder, None
    path = cached_file(
        found.source, "config.json", revision=revision, local_files_only=found.cached
    )
    folder = Path(str(path)).parent
    return folder, folder.name


def _refuse_kernels(config: Any) -> None:
    """Refuse code of a hub that config.json names as its attention.

    Raises:
        ModelError: it does.
    """
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    for name in (str(getattr(part, "_attn_implementation", "")) for part in parts):
        if "/" in name:
            raise ModelError(
                f"config.json asks for attention by code of a hub, {name}: attention=sdpa (command "
                "line: --model-option attention=sdpa) does without"
            )


def _answer_greedily(generation: Any) -> None:
    """Leave out other ways of decoding that generation_config.json asks for.

    Patching is defined for one token at a time, and some ways are code that a hub has.
    """
    plain = type(generation)()
    for name in _NOT_GREEDY:
        setattr(generation, name, getattr(plain, name, None))


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
    text = " ".join(str(error).split()) or type(error).__name__
    if "torchvision" in text.lower():
        return "its image processor is made for torchvision alone: pip install torchvision"
    if "trust_remote_code" in text:
        return _CODE_NOT_TOLD if "set the option" in text else _CODE
    if "weights_only" in text:
        return "a .bin file holds more than tensors, which could run code when it is read"
    if isinstance(error, UnicodeDecodeError):  # JSON has been read before
        return "chat_template.jinja or another text of it is not UTF-8: save it in that encoding"
    if isinstance(error, KeyError):
        return f"{text} is missing, or unknown to transformers"
    return text if len(text) <= 300 else f"{text[:300]} …"


_CODE = (
    "it brings Python code of its own. If you have read it and trust it: trust_remote_code=True "
    "(command line: --model-option trust_remote_code=true)"
)
_CODE_NOT_TOLD = (
    "a part of it brings Python code of its own that cannot be run, even with "
    "trust_remote_code=true. Take out what names it: auto_map in that part of config.json, or "
    "audio_tokenizer in processor_config.json"
)
