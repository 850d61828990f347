"""Where fedtailor keeps things that it can make again."""

import os
from pathlib import Path

import platformdirs


def cache_folder(inside: str = "") -> Path:
    """$FEDTAILOR_CACHE, or a folder inside the user's cache."""
    given = os.environ.get("FEDTAILOR_CACHE")
    return Path(given) if given else Path(platformdirs.user_cache_dir("fedtailor")) / inside
