"""Qwen-VL: equal to the official code on tiny checkpoints, from tokens to task vectors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tests.models.qwen_vl_checkpoint import REFERENCE, write
from transformers import DynamicCache
from typer.testing import CliRunner

from dpmtv import cli
from dpmtv.errors import ModelError
from dpmtv.models.adapters import load_model
from dpmtv.models.check import check_model
from dpmtv.models.extraction import preflight
from dpmtv.models.hooks import record_heads
from dpmtv.models.loading import hash_files
from dpmtv.models.projections import find_projections
from dpmtv.models.qwen_vl import QwenVLForConditionalGeneration, read_config
from dpmtv.models.qwen_vl.configuration import QwenVLConfig
from dpmtv.models.qwen_vl.processor import pixels
from dpmtv.types import Demonstration, Prompt, Query

INPUTS = dict(np.load(REFERENCE / "inputs.npz"))
EXPECTED = dict(np.load(REFERENCE / "expected.npz"))
EXAMPLES = ["one", "three", "long", "text", "batch"]


@pytest.fixture(scope="module")
def official():
    """The tiny checkpoint whose values are known; its vocabulary has no tokenizer."""
    return QwenVLForConditionalGeneration.from_pretrained(
        REFERENCE, config=read_config(REFERENCE)
    ).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("qwen") / "base")


@pytest.fixture(scope="module")
def tiny(folder):
    return load_model(folder, max_new_tokens=4)


@pytest.fixture(scope="module")
def short_memory(tmp_path_factory):
    """Its rotary base and queries are scaled beyond 36 tokens."""
    return load_model(write(tmp_path_factory.mktemp("qwen") / "short", seq_length=36))


def inputs(example: str) -> dict[str, torch.Tensor]:
    images = INPUTS[f"{example}_image_index"]
    batch = {k: torch.tensor(INPUTS[f"{example}_{k}"]) for k in ("input_ids", "attention_mask")}
    if len(images):
        batch["pixel_values"] = torch.tensor(INPUTS["pixel_values"][images])
    return batch


def near(values: torch.Tensor, name: str) -> bool:
    want = EXPECTED[name]
    assert values.shape == want.shape
    return bool(np.abs(values.detach().numpy() - want).max() < 1e-4)


def prompt(*pictures: int) -> Prompt:
    rng = np.random.default_rng(sum(pictures))
    made = [Image.fromarray(rng.integers(0, 256, (40, 60, 3), np.uint8)) for _ in pictures]
    shown = [Demonstration(p, "What is it?", "a cat") for p in made[:-1]]
    return Prompt(tuple(shown), Query(made[-1], "And this?"))


# --- equal to the official code ----------------------------------------------------------------


def test_pictures_become_the_official_pixels():
    for i, want in enumerate(INPUTS["pixel_values"]):
        picture = Image.fromarray(INPUTS[f"image{i}_uint8"])
        assert np.array_equal(pixels(picture, 112).numpy(), want)


@torch.inference_mode()
def test_every_stage_of_the_vision_tower_is_the_official_one(official):
    tower, seen = official.transformer.visual, {}
    for name, module in (
        ("vision_tower_output", tower.transformer.resblocks[-1]),
        ("resampler_output", tower.attn_pool),
    ):
        module.register_forward_hook(lambda _m, _a, out, name=name: seen.update({name: out}))
    features = tower(torch.tensor(INPUTS["pixel_values"]))
    assert near(features, "image_features")
    assert all(near(out, name) for name, out in seen.items())
    assert len(seen) == 2


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("example", EXAMPLES)
@torch.inference_mode()
def test_every_stage_of_the_language_model_is_the_official_one(official, example, attention):
    official.set_attn_implementation(attention)
    seen = {}
    decoder = official.get_decoder()
    handles = [
        decoder.h[0].register_forward_pre_hook(lambda _m, args: seen.update(inputs_embeds=args[0])),
        decoder.ln_f.register_forward_hook(lambda _m, _a, out: seen.update(last_hidden_state=out)),
    ]
    with record_heads(find_projections(official)) as heads:
        logits = official(**inputs(example)).logits
    for handle in handles:
        handle.remove()
    seen["last_hidden_state_tail16"] = seen["last_hidden_state"][:, -16:]
    seen["last_hidden_state_tail8"] = seen["last_hidden_state"][:, -8:]
    seen |= {"logits_last": logits[:, -1], "c_proj_input_last": torch.stack(heads)}
    names = [name for name in seen if f"{example}_{name}" in EXPECTED]
    assert len(names) == (4 if example in {"one", "three", "text"} else 3)
    for name in names:
        assert near(seen[name], f"{example}_{name}"), name


@pytest.mark.parametrize("example", EXAMPLES)
def test_greedy_tokens_are_the_official_ones(official, example):
    batch = inputs(example)
    ids = official.generate(
        **batch, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    new = ids[:, batch["input_ids"].shape[1] :].numpy()
    assert np.array_equal(new, EXPECTED[f"{example}_greedy8"])


def test_the_official_sizes_give_the_official_tensors():
    config = json.loads((REFERENCE / "config.json").read_text("utf-8"))
    visual = {"image_size": 448, "patch_size": 14, "width": 1664, "layers": 48, "heads": 16}
    visual |= {"mlp_ratio": 4.9231, "output_dim": 4096, "image_start_id": 151857}
    sizes = {"hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128}
    sizes |= {"num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 151936}
    with torch.device("meta"):
        model = QwenVLForConditionalGeneration(QwenVLConfig(**config | sizes | {"visual": visual}))
    tensors = model.state_dict()
    assert sum(t.numel() for t in tensors.values()) == 9_656_935_168
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    pool = "transformer.visual.attn_pool"
    assert shapes[f"{pool}.query"] == shapes[f"{pool}.pos_embed"] == (256, 4096)
    assert shapes[f"{pool}.attn.in_proj_weight"] == (12288, 4096)
    assert shapes["transformer.visual.transformer.resblocks.47.mlp.c_fc.weight"] == (8192, 1664)
    assert shapes["transformer.h.31.mlp.w2.weight"] == (11008, 4096)


@torch.inference_mode()
def test_what_stands_between_an_images_tags_is_not_read(official):
    batch = inputs("one")
    want = official(**batch).logits
    start = int((batch["input_ids"][0] == 290).nonzero())
    batch["input_ids"][0, start + 1 : start + 17] = 292  # padding alone
    assert torch.equal(official(**batch).logits, want)


# --- the length of a prompt --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "alpha"),
    [(1, 1), (95, 1), (96, 1), (97, 3), (192, 3), (193, 7), (384, 7), (385, 15)],
)
def test_the_rotary_base_is_that_of_a_prompts_length(official, tokens, alpha):
    base = official.transformer.rotary_bases(torch.tensor([tokens]))
    assert float(base) == pytest.approx(10000 * alpha ** (64 / 62), rel=1e-6)


def test_without_scaling_long_prompts_are_others(tmp_path):
    plain = load_model(write(tmp_path / "a", seq_length=48)).last_token_heads(prompt(1, 2, 3))
    for name in ("use_dynamic_ntk", "use_logn_attn"):
        other = load_model(write(tmp_path / name, seq_length=48, **{name: False}))
        assert np.abs(other.last_token_heads(prompt(1, 2, 3)) - plain).max() > 1e-3
        same = other.last_token_heads(prompt(1))
        assert np.abs(same - load_model(tmp_path / "a").last_token_heads(prompt(1))).max() < 1e-6


def test_nothing_is_kept_from_one_prompt_to_the_next(short_memory, monkeypatch):
    """The reason why other models with dynamic rotary bases are refused."""
    assert list(short_memory.model.buffers()) == []
    before = [dict(vars(m)) for m in short_memory.model.modules()]
    short_memory.generate([prompt(1, 2, 3)])
    after = [dict(vars(m)) for m in short_memory.model.modules()]
    for old, new in zip(before, after, strict=True):
        assert set(old) == set(new)
        assert all(new[k] is old[k] for k in old)

    decoder, bases = short_memory.model.transformer, []
    stateless = decoder.rotary_bases

    def seen(lengths):
        bases.append(stateless(lengths))
        return bases[-1]

    monkeypatch.setattr(decoder, "rotary_bases", seen)
    preflight(short_memory, 3)
    short, longer, again = map(float, bases)
    assert short == again < longer, "a longer prompt of another base has to come in between"
    bases.clear()
    monkeypatch.setattr(decoder, "rotary_bases", lambda lengths: max(seen(lengths), *bases))
    with pytest.raises(ModelError, match="remembers earlier prompts"):
        preflight(short_memory, 3)


def test_a_longer_prompt_passes_the_whole_check(short_memory):
    report = check_model(short_memory, "it", shots=4)
    assert report.reasons == []
    assert report.kept_prefixes
    assert report.chunk_tokens > 2 * 36


@torch.inference_mode()
def test_a_padded_row_gives_what_it_gives_alone_whatever_its_length(short_memory):
    prompts = [prompt(1), prompt(1, 2), prompt(1, 2, 3, 4)]
    whole, _ = short_memory.forward(short_memory.inputs(prompts))
    for row, one in enumerate(prompts):
        alone, _ = short_memory.forward(short_memory.inputs([one]))
        assert (whole[row, -1] - alone[0, -1]).abs().max() < 1e-4


@torch.inference_mode()
def test_a_cache_goes_on_with_its_prompts_rotary_base(official):
    """As officially: crossing `seq_length` while decoding changes the queries alone."""
    batch = inputs("three")  # 75 tokens of 96
    more = torch.randint(3, 200, (1, 30), generator=torch.Generator().manual_seed(0))
    cache = DynamicCache()
    official(**batch, cache=cache)
    steps = [official(input_ids=one[None], cache=cache).logits[:, -1] for one in more.T]
    ids = torch.cat([batch["input_ids"], more], 1)
    whole = official(input_ids=ids, pixel_values=batch["pixel_values"]).logits[:, 75:]
    official.transformer.config.use_dynamic_ntk = False
    kept = official(input_ids=ids, pixel_values=batch["pixel_values"]).logits[:, 75:]
    official.transformer.config.use_dynamic_ntk = True
    assert (torch.stack(steps, 1) - kept).abs().max() < 1e-4
    assert (whole - kept).abs().max() > 1e-3


# --- checkpoints -------------------------------------------------------------------------------


def test_the_two_prompt_formats(tiny, tmp_path, picture):
    both = Prompt((Demonstration(picture, "Which?", "red"),), Query(picture, "And?"))
    assert tiny.render(both) == "<img></img>Which? Answer: red<img></img>And? Answer:"
    assert tiny.end_ids == {268}
    chat = load_model(write(tmp_path / "chat", chat_format="chatml"))
    line = "Answer the question using a single word or phrase."
    assert chat.render(Prompt((), both.query)).endswith(
        f"<|im_start|>user\nPicture 1: <img></img>\nAnd?\n{line}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chat.end_ids == {268, 269, 270}
    assert chat.tokenizer.decode(chat.answer_ids(both, "red")) == "red<|im_end|>"
    with pytest.raises(ModelError, match="chat_format 'other'"):
        load_model(write(tmp_path / "other", chat_format="other"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling = .* is unknown"),
        ({"rotary_pct": 0.5}, "rotary_pct is 0.5; only 1.0"),
        ({"no_bias": False}, "no_bias is False; only True"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True; only False"),
        ({"quantization_config": {"bits": 4}}, "Int4 release"),
        ({"seq_length": None}, "seq_length is missing"),
        ({"visual": None}, "text alone"),
        ({"kv_channels": 64}, "num_attention_heads · kv_channels is not hidden_size"),
        ({"visual.n_queries": 5}, "n_queries is no square"),
        ({"visual.heads": None}, "visual.heads is missing"),
        ({"visual.depth": 3}, "visual.depth = 3 is unknown"),
        ({"visual.image_start_id": 481}, "belongs to another checkpoint"),
        ({"vocab_size": 400}, "belongs to another checkpoint"),
    ],
)
def test_what_is_not_known_is_refused(folder, tmp_path, change, message):
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / "config.json"
    config = json.loads(path.read_text("utf-8"))
    for name, value in change.items():
        section = config["visual"] if name.startswith("visual.") else config
        section[name.removeprefix("visual.")] = value
        if value is None:
            del section[name.removeprefix("visual.")]
    path.write_text(json.dumps(config), "utf-8")
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path / "copy")


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_weights_in_several_files(tiny, folder, tmp_path, kind):
    shutil.copytree(folder, tmp_path / "copy")
    tensors = load_file(folder / "model.safetensors")
    (tmp_path / "copy" / "model.safetensors").unlink()
    stem = "model" if kind == "safetensors" else "pytorch_model"
    where = {}
    for i, names in enumerate((list(tensors)[::2], list(tensors)[1::2])):
        file = f"{stem}-0000{i + 1}-of-00002.{kind}"
        part = {name: tensors[name] for name in names}
        if kind == "bin":
            torch.save(part, tmp_path / "copy" / file)
        else:
            save_file(part, tmp_path / "copy" / file, {"format": "pt"})
        where |= dict.fromkeys(names, file)
    index = tmp_path / "copy" / f"{stem}.{kind}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}), "utf-8")
    parts = load_model(tmp_path / "copy")
    assert np.array_equal(parts.last_token_heads(prompt(1)), tiny.last_token_heads(prompt(1)))


class _MakesAFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_weights_never_run_code(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors").unlink()
    bad = {"lm_head.weight": _MakesAFolder(tmp_path / "ran")}
    torch.save(bad, tmp_path / "copy" / "pytorch_model.bin")
    with pytest.raises(ModelError, match="more than tensors"):
        load_model(tmp_path / "copy")
    assert not (tmp_path / "ran").exists()


def test_the_vocabulary_is_part_of_the_models_identity(folder, tmp_path, tiny):
    shutil.copytree(folder, tmp_path / "copy")
    assert hash_files(tmp_path / "copy") == tiny.identity.weights_sha256
    with (tmp_path / "copy" / "qwen.tiktoken").open("ab") as file:
        file.write(b"emVicmE= 268")
    assert hash_files(tmp_path / "copy") != tiny.identity.weights_sha256


def test_a_hub_id_is_loaded_from_one_commit(folder, tmp_path):
    """From the hub's cache on disk, with no line to the hub; config.json names remote code."""
    old, new = "a" * 40, "b" * 40
    repository = tmp_path / "models--Qwen--Qwen-VL"
    for commit in (old, new):
        shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(new)
    code = (
        "from dpmtv import load_model\n"
        f"for revision in (None, {old!r}):\n"
        "    identity = load_model('Qwen/Qwen-VL', revision=revision).identity\n"
        "    print(identity.id, identity.revision)\n"
    )
    offline = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | offline,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"Qwen/Qwen-VL {new}", f"Qwen/Qwen-VL {old}"]


# --- use ---------------------------------------------------------------------------------------


def test_a_patched_batch_answers_as_patched_prompts_alone(tiny):
    prompts = [prompt(1), prompt(2, 3), prompt(4, 5, 6)]
    vector = tiny.last_token_heads(prompt(7, 8)) + 0.3
    heads = np.arange(tiny.layout.n_heads) % 2 == 0
    with tiny.patched(vector, heads):
        together = tiny.generate(prompts)
        alone = [tiny.generate([p])[0] for p in prompts]
    assert together == alone
    assert together != tiny.generate(prompts)


def test_images_and_their_places_must_match(tiny, picture):
    run = tiny.processor
    with pytest.raises(ValueError, match="1 places for images, but 2 images"):
        run(["<img></img>"], [[picture, picture]], return_tensors="pt")
    batch = run(["<img></img>a"], [[picture]], return_tensors="pt")
    with pytest.raises(ValueError, match="1 places for images, but 0 images"):
        tiny.model(input_ids=batch["input_ids"])
    with pytest.raises(ValueError, match="4 tokens and an end"):
        tiny.model(input_ids=batch["input_ids"][:, :3], pixel_values=batch["pixel_values"])


def test_models_check_says_that_it_is_usable(folder, monkeypatch):
    monkeypatch.setattr(cli.common, "_debug", False)
    result = CliRunner().invoke(cli.app, ["models", "check", str(folder), "--json"])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["model_type"] == "qwen"
    assert all(finding["passed"] for finding in report["findings"])
