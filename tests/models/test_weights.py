"""A checkpoint has exactly its architecture's tensors, or is refused by name on every path."""

from __future__ import annotations

import shutil
import zipfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.families import make
from torch import nn
from typer.testing import CliRunner

from dpmtv import cli
from dpmtv.errors import ModelError
from dpmtv.evaluation.benchmark import EMBEDDED_DATA
from dpmtv.models.adapters import load_model
from dpmtv.models.loading import EMBEDDED
from dpmtv.models.weights import load_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

Tensors = dict[str, "Tensor"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Callable[[str], Path]:
    """A folder by its path of loading; not to be changed."""
    made: dict[str, Path] = {"embedded": EMBEDDED}

    def folder(path: str) -> Path:
        if path == "sharded":
            made[path] = tmp_path_factory.mktemp(path)
            shutil.copytree(EMBEDDED, made[path], dirs_exist_ok=True)
            (made[path] / "model.safetensors").unlink()
            load_model("embedded").model.save_pretrained(made[path], max_shard_size="4MB")
            assert len(list(made[path].glob("*.safetensors"))) > 1
        elif path not in made:
            made[path] = make(path, tmp_path_factory.mktemp(path))
        return made[path]

    return folder


def changed(source: Path, target: Path, change: Callable[[Tensors], object]) -> Path:
    """A copy of the checkpoint with other tensors in its largest file."""
    shutil.copytree(source, target)
    path = max(target.rglob("*.safetensors"), key=lambda file: file.stat().st_size)
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})
    return target


def one(tensors: Tensors) -> str:
    return max(name for name in tensors if ".mlp." in name and tensors[name].ndim == 2)


def prefix(tensors: Tensors) -> None:
    for name in list(tensors):
        tensors[f"module.{name}"] = tensors.pop(name)


def double(tensors: Tensors) -> None:
    tensors[one(tensors)] = torch.cat([tensors[one(tensors)]] * 2)


FAULTS: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "missing": (lambda t: t.pop(one(t)), r"mlp\S+ is missing\. "),
    "unknown": (lambda t: t.update(other=torch.zeros(1)), r"other is not of this model\. "),
    "shape": (double, r"mlp\S+ has shape \(\d+, \d+\), not \(\d+, \d+\)\. "),
    "prefix": (prefix, r"weight is missing; .*; module\.\S+ is not of this model .*\d+ more"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("path", ["embedded", "sharded", "llava", "gemma3", "qwen", "llava_llama"])
def test_tensors_that_do_not_fit_are_named(path, fault, checkpoint, tmp_path):
    change, said = FAULTS[fault]
    folder = changed(checkpoint(path), tmp_path / "changed", change)
    with pytest.raises(ModelError, match=rf"the weights in \S*changed\S* do not fit: .*{said}"):
        load_model(folder)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("qwen3_5", lambda t: t.update({"mtp.norm.weight": torch.zeros(1)})),  # its own list
        ("llava", lambda t: t.update({"language_model.model.rotary_emb.inv_freq": torch.ones(1)})),
        ("gemma3", lambda t: t.update({"lm_head.weight": t[embedding(t)].clone()})),  # tied, twice
        ("gemma3", lambda t: t.update({"lm_head.weight": t.pop(embedding(t))})),  # or at its end
    ],
)
def test_what_an_architecture_ties_or_ignores_is_allowed(path, change, checkpoint, tmp_path):
    ours, same = (
        load_model(folder).model.state_dict()
        for folder in (changed(checkpoint(path), tmp_path / "more", change), checkpoint(path))
    )
    assert all(torch.equal(ours[name], same[name]) for name in ours | same)


def embedding(tensors: Tensors) -> str:
    (name,) = [name for name in tensors if name.endswith("embed_tokens.weight")]
    return name


def test_without_any_tensor_of_a_tie_it_is_refused(checkpoint, tmp_path):
    folder = changed(checkpoint("gemma3"), tmp_path / "untied", lambda t: t.pop(embedding(t)))
    with pytest.raises(ModelError, match=r"embed_tokens\.weight is missing"):
        load_model(folder)


def test_experts_that_cannot_be_put_together_are_named(checkpoint, tmp_path):
    def flat(tensors: Tensors) -> None:
        name = next(name for name in tensors if name.endswith("experts.gate_up_proj"))
        tensors[name] = tensors[name][0, 0].clone()

    folder = changed(checkpoint("qwen3_vl_moe"), tmp_path / "flat", flat)
    with pytest.raises(ModelError, match=r"do not fit: \S+experts\.gate_up_proj cannot be put"):
        load_model(folder)


@pytest.mark.parametrize("archive", [True, False])
def test_a_damaged_file_of_pickled_tensors_is_named(archive, checkpoint, tmp_path):
    """It begins as one; `test_folder_check` has what is seen before."""
    folder = shutil.copytree(checkpoint("llava"), tmp_path / "cut")
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    path.write_bytes(b"\x80\x02")
    if archive:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("another", "file")
    with pytest.raises(ModelError, match=r"cannot (read|load) .*/cut: \S+"):
        load_model(folder)


def test_a_part_of_the_weights_that_is_not_there_is_named(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("sharded"), tmp_path / "part")
    lost = min(folder.glob("*.safetensors"))
    lost.unlink()
    with pytest.raises(ModelError, match=lost.name):
        load_model(folder)


def test_an_adapter_is_not_passed_over(checkpoint, tmp_path):
    """Where peft is installed it would be another model, under the same hash."""
    folder = shutil.copytree(checkpoint("llava"), tmp_path / "adapted")
    (folder / "adapter_config.json").write_text("{}", "utf-8")
    with pytest.raises(ModelError, match=r"adapter_config\.json.* merge it into the weights"):
        load_model(folder)


# --- quantised: layers as bitsandbytes makes them -----------------------------------------------


class Linear4bit(nn.Linear):
    pass


class Linear8bitLt(nn.Linear):
    pass


def packed(bits: int, rows: int, scales: bool) -> Any:
    """What comes of a layer of shape (4, 6) when its weights have so many rows."""
    layer = (Linear4bit if bits == 4 else Linear8bitLt)(6, 4, device="meta")
    data = torch.zeros(rows * 3, 1) if bits == 4 else torch.zeros(rows, 6)
    weight: Any = nn.Parameter(data.to(torch.uint8 if bits == 4 else torch.int8), False)
    layer.weight = weight
    if scales and bits == 4:
        weight.quant_state = SimpleNamespace(shape=torch.Size([4, 6]))
    elif scales:
        weight.SCB = torch.ones(rows)
    return layer


class Kind:
    """Of which transformers finds nothing wrong."""

    def __init__(self, layer: nn.Module) -> None:
        self.model = nn.ModuleDict({"layer": layer})

    def from_pretrained(self, _source: object, **_options: object) -> tuple[nn.Module, Any]:
        return self.model, {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_weights_have_the_layers_shape_and_their_scales(bits, tmp_path):
    kind = Kind(packed(bits, 4, scales=True))
    assert load_weights(kind, tmp_path) is kind.model
    for rows, scales in ((8, True), (4, False)):
        with pytest.raises(ModelError, match=r"do not fit: layer\.weight .* no shape \(4, 6\)"):
            load_weights(Kind(packed(bits, rows, scales)), tmp_path)


def test_a_quantised_matrix_of_another_shape_is_refused(tmp_path):
    layer = packed(4, 4, scales=True)
    layer.weight.quant_state.shape = torch.Size([6, 4])
    with pytest.raises(ModelError, match=r"no shape \(4, 6\)"):
        load_weights(Kind(layer), tmp_path)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_eight_bit_floats_have_their_scales(lost, tmp_path):
    eight = torch.zeros(2, 2, dtype=torch.float8_e4m3fn)
    tensors = {f"{name}.weight": eight.clone() for name in "ab"}
    tensors |= {f"{name}.weight_scale_inv": torch.ones(1, 1) for name in "ab"[lost:]}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    kind = Kind(nn.Linear(2, 2))
    if lost:
        with pytest.raises(ModelError, match=r"a\.weight is without its scale"):
            load_weights(kind, tmp_path)
    else:
        assert load_weights(kind, tmp_path) is kind.model
    (tmp_path / "config.json").write_text("{}")  # numbers that were cast, and need none
    assert load_weights(kind, tmp_path) is kind.model


# --- commands ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["missing", "shape"])
def test_no_command_reads_or_spends_with_such_a_model(fault, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(cli.common, "_debug", False)
    folder = changed(checkpoint("embedded"), tmp_path / "changed", FAULTS[fault][0])
    task = shutil.copytree(EMBEDDED_DATA / "tasks" / "color-gem", tmp_path / "data")
    before = sorted(task.iterdir())
    build = ["--public", "none", "--epsilon", "1", "-o", str(tmp_path / "vector")]
    plan = ["--records", "50", "--epsilon", "1", "--public", str(EMBEDDED_DATA / "public.jsonl")]
    for words in (
        ["models", "check", str(folder)],
        ["build", str(folder), str(task / "private.jsonl"), *build],
        ["plan", str(folder), *plan],
    ):
        result = CliRunner().invoke(cli.app, words)
        assert result.exit_code == 2, result.stderr
        assert "do not fit" in result.stderr
    assert sorted(task.iterdir()) == before, "no ledger, no report"
    assert not (tmp_path / "vector").exists()
