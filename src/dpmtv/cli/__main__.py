"""``python -m dpmtv.cli``."""

from dpmtv.cli import main

main()
