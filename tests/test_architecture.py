"""Imports run downward only, torch stays in its room, and the command line starts fast."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dpmtv

ROOT = Path(dpmtv.__file__).parent

# Each line may import from the lines above it; rooms on one line never from each other.
ORDER = [
    {"errors", "types"},
    {"privacy", "data", "audit"},
    {"geometry", "decoding", "head_selection", "artifact", "options"},
    {"models"},
    {"public_tasks"},
    {"private_choices"},
    {"pipeline"},
    {"evaluation"},
    {"planning"},
    {"console"},
    {"cli"},
]
EDGE = {"console", "cli"}
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
TORCH = {"torch", "transformers"}
EDGE_ONLY = {"typer", "argparse", "rich", "socket", "uvicorn", "fastapi"}


def imports(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(room: str, source: str) -> list[str]:
    bad = []
    for name in imports(source):
        parts = name.split(".")
        if parts[0] == "dpmtv" and len(parts) > 1 and parts[1] in LEVEL and parts[1] != room:
            same_line = LEVEL[parts[1]] == LEVEL[room] and room not in {"errors", "types"}
            if LEVEL[parts[1]] > LEVEL[room] or same_line:
                bad.append(f"{room} imports {name}")
        if parts[0] in TORCH and room not in {"models"} | EDGE:
            bad.append(f"{room} imports {name}, outside the torch room")
        if parts[0] in EDGE_ONLY and room not in EDGE:
            bad.append(f"{room} imports {name}, which belongs to the edge")
    return bad


def modules() -> list[tuple[str, Path]]:
    return [
        (path.relative_to(ROOT).parts[0].removesuffix(".py"), path)
        for path in sorted(ROOT.rglob("*.py"))
        if path != ROOT / "__init__.py"
    ]


@pytest.mark.parametrize(
    ("room", "path"), modules(), ids=lambda v: v if isinstance(v, str) else v.stem
)
def test_imports_run_downward(room, path):
    assert violations(room, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("privacy", "import torch"),
        ("privacy", "def f():\n    from dpmtv.data.images import load_image"),
        ("data", "from dpmtv.privacy import accounting"),
        ("types", "from dpmtv.privacy.accounting import gdp_mu"),
        ("head_selection", "from dpmtv.geometry import ReleaseGeometry"),
        ("decoding", "from dpmtv.models.atoms import rule_atoms"),
        ("artifact", "from dpmtv.models.adapters import load_model"),
        ("pipeline", "from dpmtv.evaluation import metrics"),
        ("evaluation", "import transformers"),
        ("evaluation", "import typer"),
    ],
)
def test_the_rule_can_fail(room, source):
    assert violations(room, source)


def test_no_privacy_noise_from_numpy_torch_or_random():
    for path in (ROOT / "privacy").glob("*.py"):
        source = path.read_text(encoding="utf-8")
        for word in ("np.random", "default_rng", "import random", "seed="):
            assert word not in source, (path.name, word)


@pytest.mark.parametrize(
    "code",
    [
        "import dpmtv",
        "import dpmtv; dpmtv.verify; dpmtv.TaskVector; dpmtv.read_demonstrations",
        "import dpmtv.cli",
        "import dpmtv.privacy.mechanisms, dpmtv.privacy.certificate",
    ],
)
def test_loads_without_torch(code):
    check = f"{code}\nimport sys\nassert not {{'torch', 'transformers'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_files_stay_small():
    for _, path in modules():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 500, path
