"""VILA-1.5 (Lin et al. 2023, arXiv 2312.07533): its own folder layout, read into native classes.

A checkpoint is a folder with three models of their own: ``llm`` (Llama), ``vision_tower``
(SigLIP) and ``mm_projector``. None of its Python code is run.
"""

from __future__ import annotations

from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import transformers
from safetensors import SafetensorError

from dpmtv.errors import ModelError
from dpmtv.models.folder_check import check_tokenizer, check_weights, read_json, read_parts
from dpmtv.models.vila.layout import PARTS, read_layout
from dpmtv.models.vila.modeling import (
    VilaConfig,
    VilaForConditionalGeneration,
    VilaProjector,
    VilaProjectorConfig,
)
from dpmtv.models.vila.processing import IMAGE, VilaProcessor, chat_template
from dpmtv.models.weights import load_weights

if TYPE_CHECKING:
    from pathlib import Path

FILES = ["config.json", "chat_template.jinja", *(f"{part}/*" for part in PARTS)]
"""What is downloaded of a hub repository."""

_ENDS = ("<|end_of_text|>", "<|eot_id|>")


def load(folder: Path, options: dict[str, Any]) -> tuple[Any, Any]:
    """(model, processor) of a VILA-1.5 folder.

    Args:
        folder: with config.json and the three parts.
        options: as transformers' ``from_pretrained`` takes them: dtype, attn_implementation,
            device_map, quantization_config. The last two are for the language model; the vision
            tower and the projector, a twentieth of it, lie beside its embeddings.

    Raises:
        ModelError: of another layout or arithmetic, or weights that do not fit.
    """
    known = read_layout(folder)
    llm, tower, projector = (folder / part for part in PARTS)
    for part in (llm, tower, projector):
        read_parts(part)
        check_weights(part)
    check_tokenizer(llm)
    read_json(tower / "preprocessor_config.json")
    tokenizer = _tokenizer(llm)
    text = _weights(transformers.LlamaForCausalLM, llm, **options)
    plain = {k: v for k, v in options.items() if k == "attn_implementation"}
    plain["dtype"] = text.dtype  # one for all parts, also where "auto" would find several
    vision = _weights(transformers.SiglipVisionModel, tower, **plain)
    widths = VilaProjectorConfig(
        vision_width=vision.config.hidden_size, text_width=text.config.hidden_size
    )
    # It has no attention, so transformers would refuse any kernel for it.
    downsample = _weights(VilaProjector, projector, config=widths, dtype=text.dtype)
    text = _fitted(text, tokenizer)
    tokenizer.add_tokens(IMAGE, special_tokens=True)
    config = VilaConfig(
        text_config=text.config,
        vision_config=vision.config,
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        feature_layer=known["top"]["mm_vision_select_layer"],
        # It is set on the parts' configurations, too: without it they would lose theirs.
        attn_implementation=text.config._attn_implementation,
    )
    if "device_map" in options:
        vision, downsample = vision.to(text.device), downsample.to(text.device)
    model = VilaForConditionalGeneration(config, text, vision, downsample)
    _end_answers(model.generation_config, tokenizer)
    processor = VilaProcessor(
        image_processor(tower, vision.config.image_size),
        tokenizer,
        chat_template=chat_template(folder, tokenizer),
        tokens_per_image=downsample.tokens_of(vision.embeddings.num_patches),
        longest=getattr(text.config, "tokenizer_model_max_length", None),
    )
    return model, processor


def _tokenizer(llm: Path) -> Any:
    """The language model's tokenizer.

    Raises:
        ModelError: it is Python code of the folder, which is not run.
    """
    try:
        return transformers.AutoTokenizer.from_pretrained(
            llm, clean_up_tokenization_spaces=False, trust_remote_code=False
        )
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ModelError(
            f"{llm / 'tokenizer_config.json'} names code of the folder (auto_map), of which none "
            "is run for VILA. Where tokenizer.json is the same tokenizer, take auto_map out"
        ) from error


def image_processor(tower: Path, edge: int) -> Any:
    """Pictures squeezed to the tower's square, whatever their shape ("resize"), by PIL.

    Not the class that transformers chooses where torchvision is installed: that one resizes
    tensors, and its bicubic filter gives slightly other numbers.

    Raises:
        ModelError: pictures are to be prepared in another way.
    """
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    made = SiglipImageProcessorPil.from_pretrained(tower)
    size, steps = dict(made.size), (made.do_resize, made.do_rescale, made.do_normalize)
    if size != {"height": edge, "width": edge} or made.resample != 3 or not all(steps):
        raise ModelError(
            f"{tower / 'preprocessor_config.json'} does not resize pictures by bicubic "
            f"interpolation to {edge} x {edge}, rescale and normalise them, as VILA-1.5 does"
        )
    return made


def _weights(kind: Any, folder: Path, **options: Any) -> Any:
    """One part with exactly its tensors.

    Raises:
        ModelError: they do not fit, or a file is no weights.
    """
    try:
        return load_weights(kind, folder, **options)
    except (UnpicklingError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"cannot read the weights in {folder}: {reason}") from error


def _fitted(text: Any, tokenizer: Any) -> Any:
    """The language model with one row a token, as VILA's own loader makes it.

    Raises:
        ModelError: a token other than the padding one would need a row that is not there.
    """
    rows = text.config.vocab_size
    beyond = set(range(rows, len(tokenizer))) - {tokenizer.pad_token_id}
    if beyond:
        raise ModelError(
            f"the tokenizer knows {len(tokenizer)} tokens, but the language model {rows}: token "
            f"{tokenizer.convert_ids_to_tokens(min(beyond))!r} has no embedding"
        )
    if len(tokenizer) < rows:
        text.resize_token_embeddings(len(tokenizer))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return text


def _end_answers(generation: Any, tokenizer: Any) -> None:
    """An answer ends where the checkpoint says, and where a turn of either template ends."""
    known = generation.eos_token_id
    ends = set(known if isinstance(known, list) else [] if known is None else [known])
    ends |= {tokenizer.get_vocab()[end] for end in _ENDS if end in tokenizer.get_vocab()}
    generation.eos_token_id = sorted(ends)
    generation.pad_token_id = tokenizer.pad_token_id
