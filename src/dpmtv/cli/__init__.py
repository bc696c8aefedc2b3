"""The command line: parse, call one public function, print."""

import io
import sys

from dpmtv.cli import audits, data, engineer, evaluate, models, officer, plan, reproduce
from dpmtv.cli.common import app

__all__ = [
    "app",
    "audits",
    "data",
    "engineer",
    "evaluate",
    "main",
    "models",
    "officer",
    "plan",
    "reproduce",
]


def main() -> None:
    """Entry point of ``dpmtv``."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without ε shows its number
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
