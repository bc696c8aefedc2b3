"""From text and images to a model's inputs, also where a processor's part for video is missing."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpmtv.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from PIL import Image
    from torch import Tensor


class _Absent(dict):
    """In place of a video processor: SmolVLM asks it for frames, even where there is no video."""

    num_frames = fps = None
    model_input_names: tuple[str, ...] = ()


def load_processor(source: str, config: Any, where: dict[str, Any]) -> Any:
    """The checkpoint's processor; without the packages for videos, the same for images alone.

    Raises:
        ModelError: there is none for pictures and text together.
    """
    import transformers

    try:
        made = transformers.AutoProcessor.from_pretrained(  # type: ignore[no-untyped-call]
            source, **where
        )
    except (ImportError, ValueError) as error:  # which of them depends on the family
        if "set the option `trust_remote_code" in str(error):
            # It would have asked: where no file names the class, it forgets what it was told.
            known: Any = transformers.models.auto.processing_auto.PROCESSOR_MAPPING
            if type(config) in known:
                return known[type(config)].from_pretrained(source, **where)
        if not any(package in str(error).lower() for package in ("torchvision", "num2words")):
            raise
        return _without_video(source, config, where)
    if not isinstance(made, transformers.ProcessorMixin):  # a tokenizer, where all else failed
        raise ModelError(
            f"{source} has no processor that transformers knows; processor_class in "
            "processor_config.json names it"
        )
    return made


def _without_video(source: str, config: Any, where: dict[str, Any]) -> Any:
    """The family's own processor class, made without its parts for video and sound.

    Those need torchvision (SmolVLM also num2words), which a plain environment lacks, and serve no
    image. A checkpoint whose image processor itself exists for torchvision alone is refused by it.
    """
    from transformers.models.auto import (  # `transformers` may hide what is in them
        image_processing_auto,
        processing_auto,
        tokenization_auto,
    )
    from transformers.processing_utils import ProcessorMixin

    known, _ = ProcessorMixin.get_processor_dict(source, **where)
    families: dict[str, str] = processing_auto.PROCESSOR_MAPPING_NAMES  # type: ignore[attr-defined]
    name = known.get("processor_class") or families.get(config.model_type)
    plain = _class_of(str(name))

    def check(self: Any, name: str, part: Any) -> Any:
        return None if part is absent else plain.check_argument_for_proper_class(self, name, part)

    absent = _Absent()
    images_only = type(str(name), (plain,), {"check_argument_for_proper_class": check})
    loaders: dict[str, Any] = {
        "image_processor": image_processing_auto.AutoImageProcessor,
        "tokenizer": tokenization_auto.AutoTokenizer,
    }
    parts = [
        loaders[part].from_pretrained(source, **where) if part in loaders else absent
        for part in plain.get_attributes()
    ]
    return images_only.from_args_and_dict(parts, known)  # type: ignore[attr-defined]


def _class_of(name: str) -> Any:
    """A processor class from its own module: `transformers` hides those that lack a package."""
    import transformers

    path = getattr(transformers, name).__module__
    family = path.rpartition("processing_")[2]
    package = path.rpartition(".")[0]
    for_torchvision = f"{package}.image_processing_{family}"
    try:
        module = import_module(path)
    except ModuleNotFoundError:
        # Pixtral's takes one function from there, which its twin for PIL has too.
        sys.modules[for_torchvision] = import_module(f"{package}.image_processing_pil_{family}")
        module = import_module(path)
        del sys.modules[for_torchvision]
    if getattr(module, "num2words", "") is None:
        vars(module)["num2words"] = str  # SmolVLM's, to write the lengths of videos in words
    return getattr(module, name)


def processed(
    processor: Any, texts: Sequence[str], images: Sequence[Sequence[Image.Image]], **options: Any
) -> Mapping[str, Tensor]:
    """Padded inputs of several prompts, each image at its placeholder in its text."""
    run = partial(_blip2, processor) if type(processor).__name__ == "Blip2Processor" else processor
    batch: Mapping[str, Tensor] = run(
        text=list(texts),
        images=[list(row) for row in images],
        padding=True,
        return_tensors="pt",
        **options,
    )
    return batch


def _blip2(
    processor: Any, text: list[str], images: list[list[Image.Image]], **options: Any
) -> dict[str, Tensor]:
    """BLIP-2's own processor puts one image before each text; here every image has its place.

    As there, the begin token follows the first image, so that a single image is asked as trained.
    """
    image = str(processor.image_token) * processor.num_query_tokens
    begin = processor.tokenizer.bos_token or ""
    texts = [
        t.replace(str(processor.image_token), image).replace(image, image + begin, 1) for t in text
    ]
    options["add_special_tokens"] = False
    pixels = processor.image_processor(
        [one for row in images for one in row], return_tensors=options["return_tensors"]
    )
    return {**processor.tokenizer(texts, **options), **pixels}
