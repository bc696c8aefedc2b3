"""The command line: parse, call one public function, print."""

from dpmtv.cli import data, engineer, officer
from dpmtv.cli.common import app

__all__ = ["app", "data", "engineer", "main", "officer"]


def main() -> None:
    """Entry point of ``dpmtv``."""
    app()
