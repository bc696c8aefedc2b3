"""VILA-1.5 folders: what is read of them, from disk or the hub's cache, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from tests.models.families import make

from dpmtv.errors import ModelError
from dpmtv.models import vila
from dpmtv.models.adapters import load_model
from dpmtv.types import Demonstration, Prompt, Query

TINY = Path(__file__).parents[1] / "data" / "vila15_tiny"
PAGE = Path(__file__).parents[2] / "docs" / "vila.md"


@pytest.fixture
def folder(tmp_path) -> Path:
    return make("llava_llama", tmp_path / "vila")


def change(path: Path, **fields: object) -> None:
    known = json.loads(path.read_text("utf-8")) | fields
    path.write_text(json.dumps({k: v for k, v in known.items() if v is not None}), "utf-8")


# --- weights -----------------------------------------------------------------------------------

LAST = {
    "llm": "model.norm.weight",
    "vision_tower": "vision_model.post_layernorm.bias",
    "mm_projector": "layers.4.bias",
}


@pytest.mark.parametrize("part", LAST)
@pytest.mark.parametrize("fault", ["missing", "extra", "shape"])
def test_weights_that_do_not_fit_are_named(folder, part, fault):
    path = folder / part / "model.safetensors"
    tensors = load_file(path)
    (name,) = [n for n in tensors if n.endswith(LAST[part].removeprefix("vision_model."))]
    known = tensors.pop(name) if fault == "missing" else tensors[name]
    if fault == "extra":
        tensors["another.weight"] = known.clone()
    if fault == "shape":
        tensors[name] = torch.cat([known, known])
    save_file(tensors, path, {"format": "pt"})
    said = {
        "missing": rf"{LAST[part].removeprefix('vision_model.')} is missing",
        "extra": r"another\.weight is not of this model",
        "shape": rf"has shape \({2 * len(known)},\), not \({len(known)},\)",
    }
    with pytest.raises(ModelError, match=rf"{part} do not fit: .*{said[fault]}"):
        load_model(folder)


def test_shards_and_pickled_tensors_are_the_same_model(tmp_path):
    """As `torch.save` writes them, one file or several with an index."""
    shutil.copytree(TINY, tmp_path / "pickled")
    for part in ("llm", "vision_tower", "mm_projector"):
        inside = tmp_path / "pickled" / part
        for path in sorted(inside.glob("*.safetensors")):
            name = path.stem.replace("model", "pytorch_model", 1) + ".bin"
            torch.save(load_file(path), inside / name)
            path.unlink()
    index = tmp_path / "pickled" / "llm" / "model.safetensors.index.json"
    names = index.read_text("utf-8").replace("model-0", "pytorch_model-0")
    (index.parent / "pytorch_model.bin.index.json").write_text(
        names.replace(".safetensors", ".bin"), "utf-8"
    )
    index.unlink()
    ours, same = load_model(tmp_path / "pickled"), load_model(TINY)
    for (name, one), (_, other) in zip(
        ours.model.named_parameters(), same.model.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name


class _Code:
    def __reduce__(self):
        return (open, ("ran", "w"))


def test_pickled_code_does_not_run_and_broken_files_are_named(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (folder / "mm_projector" / "model.safetensors").unlink()
    torch.save({"layers.4.bias": _Code()}, folder / "mm_projector" / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"cannot read the weights in .*mm_projector"):
        load_model(folder)
    (folder / "mm_projector" / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelError, match=r"mm_projector/model\.safetensors cannot be read"):
        load_model(folder)
    assert not (tmp_path / "ran").exists()


def test_all_parts_are_of_one_number_type(folder):
    """The language model's, where nothing else is said."""
    llm = load_file(folder / "llm" / "model.safetensors")
    halves = {name: tensor.to(torch.bfloat16) for name, tensor in llm.items()}
    save_file(halves, folder / "llm" / "model.safetensors", {"format": "pt"})
    change(folder / "llm" / "config.json", dtype="bfloat16")
    model, _ = vila.load(folder, {"dtype": "auto"})
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_weights_in_folders_inside_are_part_of_the_identity(folder):
    before = load_model(folder).identity
    path = folder / "mm_projector" / "model.safetensors"
    tensors = load_file(path)
    tensors["layers.4.bias"][0] += 1
    save_file(tensors, path, {"format": "pt"})
    assert load_model(folder).identity != before


# --- configurations ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "field", "value", "message"),
    [
        ("config.json", "s2", True, "s2 is True"),
        ("config.json", "image_aspect_ratio", "dynamic", "image_aspect_ratio is 'dynamic'"),
        ("config.json", "mm_vision_select_feature", "patch", "only 'cls_patch' is supported"),
        ("config.json", "mm_use_im_start_end", True, "mm_use_im_start_end is True"),
        ("config.json", "mm_use_im_patch_token", None, "mm_use_im_patch_token is True"),
        ("config.json", "mm_vision_select_layer", None, "does not say mm_vision_select_layer"),
        ("config.json", "llm_cfg", "org/llama", "no VILA-1.5 .*: llm_cfg in .* is 'org/llama'"),
        ("config.json", "mm_projector_cfg", None, "mm_projector_cfg in config.json is absent"),
        ("llm/config.json", "model_type", "qwen2", "other than Llama are not supported"),
        ("llm/config.json", "quantization_config", {"bits": 4}, "quantised weights"),
        ("vision_tower/config.json", "model_type", "intern_vit_6b", "other than SigLIP"),
        ("vision_tower/preprocessor_config.json", "resample", 2, "bicubic"),
        ("vision_tower/preprocessor_config.json", "do_normalize", False, "normalise"),
        ("mm_projector/config.json", "mm_projector_type", "linear", "'linear', not 'mlp_downs"),
    ],
)
def test_other_arithmetic_is_refused(folder, file, field, value, message):
    change(folder / file, **{field: value})
    with pytest.raises(ModelError, match=message):
        load_model(folder)


@pytest.mark.parametrize("part", ["llm", "vision_tower", "mm_projector"])
def test_a_folder_without_a_part_is_refused(folder, part):
    shutil.rmtree(folder / part)
    with pytest.raises(ModelError, match=f"{part}/config.json is missing"):
        load_model(folder)


# --- what is missing or unreadable -------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("llm/tokenizer.json", None, "llm has no tokenizer: none of"),
        ("llm/tokenizer_config.json", "{", r"llm/tokenizer_config\.json, line 1, column 2, is no"),
        ("vision_tower/preprocessor_config.json", None, r"preprocessor_config\.json is missing"),
        ("vision_tower/config.json", "[]", "vision_tower/config.json holds no JSON object"),
        ("mm_projector/model.safetensors", None, "mm_projector has no weights: none of model"),
    ],
)
def test_files_of_parts_are_named(folder, file, text, message):
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text, "utf-8")
    with pytest.raises(ModelError, match=message):
        load_model(folder)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_kernel_is_that_of_both_models_inside(folder, attention):
    model = load_model(folder, attention=attention).model
    for part in (model, model.llm, model.vision_tower):
        assert part.config._attn_implementation == attention


# --- vocabulary --------------------------------------------------------------------------------


def tokens(folder: Path, *more: str, pad: str | None = None) -> int:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "llm")
    tokenizer.add_tokens([*more, *([pad] if pad else [])], special_tokens=True)
    if pad:
        tokenizer.pad_token = pad
    tokenizer.save_pretrained(folder / "llm")
    return len(tokenizer)


def test_only_the_padding_token_may_lack_an_embedding(folder, picture):
    prompt = Prompt((), Query(picture, "What is shown?"))
    longer = Prompt((), Query(picture, "What is shown, and what not?"))
    plain = load_model(folder)
    before, rows = plain.last_token_heads(prompt), plain.model.config.text_config.vocab_size
    assert tokens(folder, pad="[PAD]") == rows + 1
    padded = load_model(folder)
    batch = padded.inputs([prompt, longer])
    assert int(batch["input_ids"][0, 0]) == rows, "the padding id has no row"
    heads = padded.forward(batch, logits_to_keep=1)
    assert bool(torch.isfinite(heads[0]).all())
    assert abs(padded.last_token_heads(prompt) - before).max() < 1e-6
    tokens(folder, "<another>")
    with pytest.raises(ModelError, match="'<another>' has no embedding"):
        load_model(folder)


def test_rows_beyond_the_tokenizer_are_cut_as_in_the_official_loader(tmp_path):
    folder = shutil.copytree(TINY, tmp_path / "more")
    change(folder / "llm" / "config.json", vocab_size=300)
    for path in (folder / "llm").glob("*.safetensors"):
        known = load_file(path)
        for name in {"model.embed_tokens.weight", "lm_head.weight"} & set(known):
            known[name] = torch.cat([known[name], torch.ones(38, 128)])
        save_file(known, path, {"format": "pt"})
    ours, same = load_model(folder), load_model(TINY)
    assert ours.model.config.get_text_config().vocab_size == 262
    assert torch.equal(ours.model.llm.lm_head.weight, same.model.llm.lm_head.weight)


# --- prompts of other releases -----------------------------------------------------------------

WRITTEN = dict(re.findall(r"<!-- (\w+) -->\n```jinja\n(.*?)```", PAGE.read_text("utf-8"), re.S))
ASKED = "What is shown?"
USER, OLD, NEW = (
    f"<|start_header_id|>{who}<|end_header_id|>\n\n" for who in ("user", "system", "assistant")
)
WANTED = {
    "later": f"{USER}<image>\n{ASKED}<|eot_id|>{NEW}a cat<|eot_id|>{USER}<image>\n{ASKED}"
    f"<|eot_id|>{NEW}",
    "interleaved": f"{USER}<image>\n{ASKED} Answer: a cat\n<image>\n{ASKED} Answer:"
    f"<|end_of_text|>{OLD}",
}


@pytest.mark.parametrize("form", WANTED)
def test_a_folder_may_bring_its_own_prompt_form(form, folder, picture):
    """Those of docs/vila.md."""
    tokens(folder, "<|eot_id|>", pad="<|eot_id|>")
    (folder / "chat_template.jinja").write_text(WRITTEN[form], "utf-8")
    ours = load_model(folder, instruction="")
    prompt = Prompt((Demonstration(picture, ASKED, "a cat"),), Query(picture, ASKED))
    begin, _, rest = ours.render(prompt).partition("using natural language.")
    assert begin.startswith(f"<|begin_of_text|>{OLD}You are a helpful")
    end = "<|eot_id|>" if form == "later" else "<|end_of_text|>"
    assert rest == end + WANTED[form]
    assert ours.tokenizer.decode(ours.answer_ids(prompt, "red")) == f"red{end}"


def test_a_tokenizer_of_another_family_needs_a_form(folder):
    for path in (folder / "llm").glob("tokenizer*.json"):
        named = path.read_text("utf-8").replace("<|start_header_id|>", "<|other|>")
        path.write_text(named, "utf-8")
    with pytest.raises(ModelError, match=r"put that form into .*chat_template\.jinja"):
        load_model(folder)


# --- hub ---------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path, monkeypatch, folder) -> tuple[str, str]:
    """Two commits of a repository as a download leaves them in the cache, and no network."""
    commits = ("a" * 40, "b" * 40)
    cache = tmp_path / "hub"
    repository = cache / "models--org--vila"
    for name, commit in zip(("v1", "main"), commits, strict=True):
        shutil.copytree(TINY if name == "v1" else folder, repository / "snapshots" / commit)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / name).write_text(commit, "utf-8")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return commits


@pytest.mark.parametrize(("revision", "at"), [(None, 1), ("v1", 0), ("a" * 40, 0)])
def test_a_hub_id_is_pinned_to_its_commit(hub, revision, at):
    ours = load_model("org/vila", revision=revision)
    assert (ours.identity.id, ours.identity.revision) == ("org/vila", hub[at])
    assert ours.layout.layers == (3, 2)[at]


def test_a_repository_that_is_not_there_is_refused(hub):
    with pytest.raises(ModelError, match="has no org/other; HF_HUB_OFFLINE is set"):
        load_model("org/other")
