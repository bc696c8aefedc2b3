"""Attacks as statistics: what was seen of a release, and what its certificate allows."""
