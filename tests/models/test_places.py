"""Names that lead to no model are told at once, and no path goes to a hub."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from dpmtv.cli import app
from dpmtv.errors import ModelError
from dpmtv.models import places
from dpmtv.models.adapters import load_model
from dpmtv.models.places import EMBEDDED, Place, find_model


class Hub:
    """Counts requests and refuses them all, as without a network."""

    requests = 0

    def head(self, *_: object, **__: object) -> None:
        self.requests += 1
        raise OSError


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Hub:
    """No network; a folder with models beside; one model in the cache of downloads."""
    hub = Hub()
    monkeypatch.setattr(places, "get_session", lambda: hub)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("models--org--tiny", "models--bare"):
        shutil.copytree(EMBEDDED, tmp_path / "hub" / name / "snapshots" / ("c" * 40))
        (tmp_path / "hub" / name / "refs").mkdir()
        (tmp_path / "hub" / name / "refs" / "main").write_text("c" * 40, "utf-8")
    (tmp_path / "models" / "llava-tuned").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("x", "utf-8")
    monkeypatch.chdir(tmp_path)
    return hub


PATHS = [
    ("./llava", "there is no folder .*/llava, and ./llava is no hub id"),
    ("/no/such/place", "there is no folder /no, and"),
    ("~/models/llava", "there is no folder .*/~, and"),
    ("models/llava-tunde", r"/models/llava-tunde \(but llava-tuned\); .*hub, where downloads are"),
    ("models/llava-tunde/", r"llava-tunde \(but llava-tuned\), and"),
    ("modles/llava-tuned/last", r"there is no folder .*/modles \(but models\), and"),
    ("llava-tuned", "If it is a hub id: hf download llava-tuned"),
    ("notes.txt", "notes.txt is a file; a model is the folder"),
    ("https://somewhere/org/tiny", "is no hub id"),
    ("org/tiny@main", "is no hub id"),
    ("", "no model is named"),
    (Path("org/other"), "org/other is no hub id"),
    ("x" * 300, "cannot look for xx"),
]


@pytest.mark.parametrize(("name", "message"), PATHS)
def test_a_path_is_never_sent_to_a_hub(hub, name, message):
    with pytest.raises(ModelError, match=message):
        load_model(name)
    assert hub.requests == 0


def test_without_a_network_one_request_is_made_and_the_places_are_named(hub, tmp_path):
    said = f"folder {tmp_path}/org; {tmp_path}/hub, where .* has no org/other; .* does not answer"
    with pytest.raises(ModelError, match=f"{said}.*: hf download org/other"):
        load_model("org/other")
    assert hub.requests == 1
    with pytest.raises(ModelError, match=r"has no org/tiny at v2; .* does not answer"):
        load_model("org/tiny", revision="v2")


def test_offline_none_is_made(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="has no org/other; HF_HUB_OFFLINE is set"):
        load_model("org/other")
    assert hub.requests == 0


@pytest.mark.parametrize("name", ["org/tiny", "bare"])
def test_what_is_in_the_cache_is_loaded_without_a_network(hub, name, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network")

    waits: list[float] = []  # before another try
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(time, "sleep", waits.append)
    assert load_model(name).identity.revision == "c" * 40
    assert hub.requests == 1
    assert waits == []


def test_a_hub_that_answers_is_asked(hub, monkeypatch):
    monkeypatch.setattr(hub, "head", lambda *_, **__: None)
    assert find_model("org/other") == Place("org/other")
    assert find_model("org/tiny") == Place("org/tiny", cached=False)
    assert find_model("models/llava-tuned").folder == Path("models/llava-tuned")


def test_build_says_so_before_it_reads_a_record(hub):
    options = ["--public", "none", "--epsilon", "1", "-o", "out"]
    made = CliRunner().invoke(app, ["build", "models/llava", "no-such-file.jsonl", *options])
    assert made.exit_code == 2
    assert "there is no folder" in made.output


def test_it_needs_no_torch():
    code = "import sys, dpmtv.models.places as p\ntry: p.find_model('./x')\nexcept p.ModelError: "
    code += "assert not {'torch', 'transformers'} & set(sys.modules)\nelse: raise SystemExit(1)"
    subprocess.run([sys.executable, "-c", code], check=True)
