"""Where things are: paths as users write them, and what fedtailor keeps that it can make again."""

import os
from pathlib import Path

import platformdirs

from .errors import UserError, shortened


def cache_folder(inside: str = "") -> Path:
    """$FEDTAILOR_CACHE, or a folder inside the user's cache."""
    given = os.environ.get("FEDTAILOR_CACHE")
    return Path(given) if given else Path(platformdirs.user_cache_dir("fedtailor")) / inside


def user_path(given: str) -> Path:
    """With ~ for a home; one that the system cannot even look for is refused."""
    try:
        path = Path(given).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return path  # who opens it will say so
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{shortened(given)} cannot be a path: {reason}") from error
    return path
