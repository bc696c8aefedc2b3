"""Differentially private multimodal in-context learning.

Public names load on first use, so that ``import dpmtv`` needs neither torch nor transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpmtv.artifact import TaskVector, verify
    from dpmtv.data.demonstrations import read_demonstrations
    from dpmtv.models.adapters import load_model
    from dpmtv.pipeline import build_task_vector
    from dpmtv.planning import plan
    from dpmtv.types import Demonstration, Query

_HOME = {
    "Demonstration": "types",
    "Query": "types",
    "TaskVector": "artifact",
    "build_task_vector": "pipeline",
    "load_model": "models.adapters",
    "plan": "planning",
    "read_demonstrations": "data.demonstrations",
    "verify": "artifact",
}

__all__ = [
    "Demonstration",
    "Query",
    "TaskVector",
    "build_task_vector",
    "load_model",
    "plan",
    "read_demonstrations",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dpmtv' has no attribute {name!r}")
    return getattr(import_module(f"dpmtv.{_HOME[name]}"), name)
