"""dpmtv."""
