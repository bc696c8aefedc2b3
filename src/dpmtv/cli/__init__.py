"""The command line: parse, call one public function, print."""

from dpmtv.cli import engineer, officer
from dpmtv.cli.common import app

__all__ = ["app", "engineer", "main", "officer"]


def main() -> None:
    """Entry point of ``dpmtv``."""
    app()
