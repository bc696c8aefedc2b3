"""Where a model's name leads: a folder, a hub, or nowhere; without torch, to be told at once."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from huggingface_hub import constants, get_session, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from dpmtv.errors import ModelError

EMBEDDED = Path(__file__).resolve().parent.parent / "embedded" / "model"

_PATIENCE = (
    3.0  # seconds for a hub that gives no answer at all; one that is not there fails at once
)


@dataclass(frozen=True)
class Place:
    """Where a model is.

    Args:
        source: the folder's path or the hub id, as transformers takes it.
        folder: None for a hub id.
        cached: only what was downloaded before may be read.
    """

    source: str
    folder: Path | None = None
    cached: bool = False


def find_model(name: str | Path, revision: str | None = None) -> Place:
    """Where the model of that name is. What may be a path is never sent to a hub.

    Raises:
        ModelError: nowhere, or it is a file.
    """
    if not str(name):
        raise ModelError("no model is named")
    folder = EMBEDDED if str(name) == "embedded" else Path(name)
    try:
        if folder.is_dir():
            return Place(str(folder), folder)
        if folder.is_file():
            raise ModelError(f"{name} is a file; a model is the folder that holds config.json")
        missing = _missing(folder.absolute())
        owned = folder.parent != Path() and folder.parent.is_dir()
    except OSError as error:
        raise ModelError(f"cannot look for {name}: {error.strerror}") from error
    if isinstance(name, Path) or not _may_be_hub_id(name):
        raise ModelError(f"{missing}, and {name} is no hub id (owner/name)")
    where = f"{constants.HF_HUB_CACHE}, where downloads are kept, has no {name}"
    where += f" at {revision}" if revision else ""
    fetch = f"hf download {name}"
    if _is_cached(name, revision):
        return Place(name, cached=_no_hub() is not None)
    if owned or "/" not in name:
        raise ModelError(f"{missing}; {where}. If it is a hub id: {fetch}")
    if (why := _no_hub()) is not None:
        raise ModelError(f"{missing}; {where}; {why}. Where there is a network: {fetch}")
    return Place(name)


def _missing(folder: Path) -> str:
    """What of a path is not there, and what of a similar name is."""
    while not folder.parent.is_dir():
        folder = folder.parent
    close = get_close_matches(folder.name, [p.name for p in folder.parent.iterdir() if p.is_dir()])
    beside = f" (but {', '.join(close)})" if close else ""
    return f"there is no folder {folder}{beside}"


def _may_be_hub_id(name: str) -> bool:
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _is_cached(name: str, revision: str | None) -> bool:
    return isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)


def _no_hub() -> str | None:
    """Why no hub is to be asked, None if one answers. Its library would try for half a minute."""
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception:  # whichever library it is by, it is the answer
        return f"{constants.ENDPOINT} does not answer"
    return None
