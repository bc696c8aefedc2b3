"""Weights of a checkpoint: all of its architecture's tensors and no others, or a refusal.

Transformers fills what it does not find with random numbers: each load would be another model
under one identity. So nothing may be missing, left over or of another shape, but for what the
architecture itself ties or lists as ignorable.
"""

from __future__ import annotations

import math
from pathlib import Path
from traceback import walk_tb
from typing import Any

from safetensors import safe_open
from torch import nn

from dpmtv.errors import ModelError

_NAMED = 3  # tensors of each fault


def load_weights(kind: Any, source: Path | str, **options: Any) -> Any:
    """The model ``kind.from_pretrained(source, **options)`` with exactly the checkpoint's tensors.

    Raises:
        ModelError: one is missing, unknown or of another shape, or an adapter lies beside them.
    """
    from transformers.utils.peft_utils import find_adapter_config_file

    where = {k: v for k, v in options.items() if k in ("revision", "local_files_only")}
    if find_adapter_config_file(str(source), **where):
        raise ModelError(
            f"{source} has an adapter beside its weights (adapter_config.json), which is applied "
            "only where peft is installed: merge it into the weights (peft's merge_and_unload), or "
            "take it away"
        )
    try:
        model, found = kind.from_pretrained(
            source, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    except (RuntimeError, EOFError) as error:  # a damaged .bin file is either
        if unmade := _unmade(error):
            raise _unfit(source, [f"{name} cannot be put together" for name in unmade]) from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise ModelError(f"cannot read the weights in {source}: {reason}") from error
    faults = (
        [f"{name} is missing" for name in sorted(found["missing_keys"])],
        [f"{name} is not of this model" for name in sorted(found["unexpected_keys"])],
        [
            f"{name} has shape {tuple(has)}, not {tuple(wants)}"
            for name, has, wants in sorted(found["mismatched_keys"])
        ],
    )
    if any(faults):
        raise _unfit(source, *faults)
    if wrong := [*_unfit_quantised(model), *_unscaled(source, where)]:
        raise _unfit(source, wrong)
    return model


def _unfit(source: Path | str, *faults: list[str]) -> ModelError:
    """Some of each fault by name, and how many there are."""
    named = [line for lines in faults for line in lines[:_NAMED]]
    more = sum(map(len, faults)) - len(named)
    rest = f" and {more} more" if more else ""
    return ModelError(
        f"the weights in {source} do not fit: {'; '.join(named)}{rest}. They must be those of its "
        "config.json, complete and under their own names"
    )


def _unmade(error: Exception) -> list[str]:
    """Tensors that were to be joined or unpacked from several, and could not: experts, say.

    Transformers names them in a log only, where its error says to look.
    """
    for frame, _ in walk_tb(error.__traceback__):
        if errors := getattr(frame.f_locals.get("loading_info"), "conversion_errors", None):
            return sorted(errors)
    return []


def _unfit_quantised(model: nn.Module) -> list[str]:
    """What bitsandbytes holds in 4 or 8 bits and does not fit its layer: transformers looks away.

    Without its scales a layer would compute with the bare bytes.
    """
    wrong = []
    for name, module in model.named_modules():
        kind = type(module).__name__
        if not isinstance(module, nn.Linear) or kind not in ("Linear4bit", "Linear8bitLt"):
            continue
        weight: Any = module.weight
        wants = (module.out_features, module.in_features)
        if kind == "Linear4bit":  # two numbers in a byte
            scales = getattr(weight, "quant_state", None)
            has = None if scales is None else tuple(scales.shape)
            fits = has == wants and weight.nbytes == (math.prod(wants) + 1) // 2
        else:
            scales = getattr(weight, "SCB", None)
            fits = scales is not None and tuple(weight.shape) == wants
        if not fits:
            wrong.append(f"{name}.weight with its scales has no shape {wants}")
    return wrong


def _unscaled(source: Path | str, where: dict[str, Any]) -> list[str]:
    """Eight-bit floats of a quantised checkpoint without a scale in their module.

    Transformers, where it dequantises them, takes such for numbers that need none.
    """
    from transformers import PretrainedConfig
    from transformers.utils.hub import cached_file

    known, _ = PretrainedConfig.get_config_dict(source, **where)
    if not known.get("quantization_config"):
        return []
    folder = Path(str(cached_file(source, "config.json", **where))).parent
    eights: set[tuple[str, str]] = set()
    scaled: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - no dictionary
                module, _, tensor = name.rpartition(".")
                if "scale" in tensor:
                    scaled.add(module)
                elif file.get_slice(name).get_dtype().startswith("F8"):
                    eights.add((name, module))
    lost = sorted(name for name, module in eights if module not in scaled)
    return [f"{name} is without its scale" for name in lost]
