"""Every family of the table, as a tiny random checkpoint, through the check that users run."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from safetensors.torch import load_file, save_file
from tests.models.families import FAMILIES, make

from dpmtv.errors import ModelError
from dpmtv.models import families
from dpmtv.models.adapters import load_model
from dpmtv.models.check import check_model
from dpmtv.types import Demonstration, Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    # GLM-4V's image processor hands tensors to numpy in an old way.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    # Before transformers 5.20 Mllama's vision encoder calls its layers in its own old way.
    pytest.mark.filterwarnings("ignore:`hidden_state` is deprecated:FutureWarning"),
]

ROWS = {row.model_type: row for row in families.FAMILIES}
INSTALLED = Version(transformers.__version__)
LATER = [name for name, row in ROWS.items() if row.since and Version(row.since) > INSTALLED]
WORKING = [name for name, row in ROWS.items() if not row.refused and name not in LATER]
NEVER_REFUSED = {
    *("idefics2", "idefics3", "smolvlm", "llava", "gemma3", "internvl"),
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_llama"),
}


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = make(family, tmp_path_factory.mktemp(family))
        return made[family]

    return folder


def test_the_table_is_what_is_checked_here():
    assert set(ROWS) == set(FAMILIES)
    assert len(ROWS) >= 20
    assert len(ROWS) - len(WORKING) - len(LATER) <= 2
    assert set(WORKING) >= NEVER_REFUSED


@pytest.mark.parametrize("family", WORKING)
def test_a_family_does_what_its_row_says(family, folder_of):
    row = ROWS[family]
    report = check_model(load_model(folder_of(family)), family, shots=2)
    assert report.reasons == []
    assert report.kept_prefixes == row.kept_prefixes
    assert (report.layers == report.of_layers) == (row.heads == "every layer")
    assert set(report.heads) == {4}
    assert ("different widths" in row.note) == (len(set(report.head_dims)) > 1)


def test_families_of_later_versions_are_refused_by_an_older_one(folder_of):
    for family in LATER:
        try:
            reasons = check_model(load_model(folder_of(family)), family, shots=2).reasons
        except ModelError as error:
            reasons = [str(error)]
        assert reasons, family


@pytest.mark.parametrize("family", [name for name, row in ROWS.items() if row.refused])
def test_a_family_is_refused_for_the_reason_in_its_row(family, folder_of):
    if find_spec("torchvision"):
        pytest.skip("the table is about an environment without torchvision")
    with pytest.raises(ModelError, match=ROWS[family].refused):
        load_model(folder_of(family))


@pytest.mark.parametrize("family", WORKING)
def test_eager_attention_and_halves_see_the_same(family, folder_of, picture):
    record = Demonstration(picture, "What digit is this?", "seven")
    prompt = Prompt((record,), record.query)
    folder = folder_of(family)
    want = load_model(folder).last_token_heads(prompt)
    eager = load_model(folder, attention="eager")
    assert eager.model.config._attn_implementation == "eager"
    assert np.abs(eager.last_token_heads(prompt) - want).max() < 1e-4 * np.abs(want).max()
    for dtype in ("bfloat16", "float16"):
        half = load_model(folder, dtype=dtype)
        assert half.dtype == dtype
        values = half.last_token_heads(prompt)
        assert np.dot(values, want) > 0.8 * np.linalg.norm(values) * np.linalg.norm(want)


def halved(source: Path, target: Path) -> Path:
    """The checkpoint in bfloat16, as most are published."""
    shutil.copytree(source, target)
    for path in target.rglob("*.safetensors"):
        tensors = {name: t.to(torch.bfloat16) for name, t in load_file(path).items()}
        save_file(tensors, path, {"format": "pt"})
    for path in target.rglob("config.json"):
        path.write_text(path.read_text("utf-8").replace('"float32"', '"bfloat16"'), "utf-8")
    top = json.loads((target / "config.json").read_text("utf-8"))
    (target / "config.json").write_text(json.dumps(top | {"dtype": "bfloat16"}), "utf-8")
    return target


@pytest.mark.parametrize("family", WORKING)
def test_by_default_a_family_is_what_it_is_in_the_number_type_named(
    family, folder_of, picture, tmp_path
):
    """Bit for bit, also what a module makes of its number type: Gemma's embedding scale."""
    folder = halved(folder_of(family), tmp_path / "half")
    ours, named = (load_model(folder, device="cpu", dtype=d) for d in ("auto", "float32"))
    assert ours.dtype == "float32"
    for of in ("named_parameters", "named_buffers"):
        one, other = (dict(getattr(m.model, of)()) for m in (ours, named))
        assert one.keys() == other.keys()
        wrong = [name for name in one if not torch.equal(one[name], other[name])]
        assert wrong == []
    prompt = Prompt((), Query(picture, "What digit is this?"))
    assert np.array_equal(ours.last_token_heads(prompt), named.last_token_heads(prompt))
    assert ours.model.config.to_dict() == named.model.config.to_dict()


def test_the_page_shows_the_table():
    lines = ["| family | `model_type` | | heads | head search | |", "|---|---|---|---|---|---|"]
    for row in families.FAMILIES:
        search = "kept prefixes" if row.kept_prefixes else "whole passes"
        works = (row.works, row.heads, search, row.note)
        cells = ("refused", "", "", row.refused) if row.refused else works
        lines.append(f"| {row.name} | `{row.model_type}` | {' | '.join(cells)} |")
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    assert "\n".join(lines) in page
