"""What a VILA folder says of itself, and what of it is not VILA-1.5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpmtv.errors import ModelError
from dpmtv.models.folder_check import read_json

if TYPE_CHECKING:
    from pathlib import Path

PARTS = ("llm", "vision_tower", "mm_projector")

# Field → (wanted, what VILA's own code takes where it is absent). Another value is another
# arithmetic.
_TOP = {
    "mm_vision_select_feature": ("cls_patch", "patch"),
    "image_aspect_ratio": ("resize", None),
    "mm_use_im_start_end": (False, False),
    "mm_use_im_patch_token": (False, True),
    "s2": (False, False),
    "vision_resolution": (-1, -1),
}
_OF_PARTS: dict[str, tuple[str, str, str]] = {
    "llm": ("model_type", "llama", "language models other than Llama"),
    "vision_tower": ("model_type", "siglip_vision_model", "vision towers other than SigLIP"),
    "mm_projector": ("mm_projector_type", "mlp_downsample", "other projectors"),
}


def read_layout(folder: Path) -> dict[str, dict[str, Any]]:
    """The configurations: ``"top"``, and one for each of the `PARTS`.

    A part's own config.json counts; the copies in the top one are training leftovers.

    Raises:
        ModelError: a file or field is missing, or asks for what is not supported.
    """
    top = _read(folder / "config.json")
    for part in PARTS:
        if not isinstance(top.get(f"{part}_cfg"), dict):
            raise ModelError(
                f"{folder} is no VILA-1.5 checkpoint with its weights inside: {part}_cfg in "
                f"config.json is {_short(top.get(f'{part}_cfg'))}"
            )
    for field, (wanted, absent) in _TOP.items():
        value = top.get(field, absent)
        if value != wanted:
            raise ModelError(
                f"{folder / 'config.json'}: {field} is {_short(value)}; of VILA's variants only "
                f"{_short(wanted)} is supported (no S2, no video, no other tilings)"
            )
    if not isinstance(top.get("mm_vision_select_layer"), int):
        raise ModelError(f"{folder / 'config.json'} does not say mm_vision_select_layer")
    configs = {"top": top}
    for part, (field, wanted_type, others) in _OF_PARTS.items():
        configs[part] = _read(folder / part / "config.json")
        if configs[part].get(field) != wanted_type:
            raise ModelError(
                f"{folder / part / 'config.json'}: {field} is {_short(configs[part].get(field))}, "
                f"not {wanted_type!r}; {others} are not supported"
            )
        if "quantization_config" in configs[part]:
            raise ModelError(f"{folder / part} holds quantised weights, which are not supported")
    return configs


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelError(f"{path} is missing: a VILA-1.5 folder has {', '.join(PARTS)} inside")
    return read_json(path)


def _short(value: Any) -> str:
    return "absent" if value is None else repr(value)[:60]
