"""`fedtailor flower app`: a folder for `flwr run`, which only names our ServerApp and ClientApp to Flower."""

from importlib.resources import files
from pathlib import Path
from string import Template

from ..base.errors import UserError
from ..base.files import write_atomic
from ..base.version import __version__

TEMPLATES = files(__package__) / "templates" / "app"
NAMES = "pyproject.toml", "README.md", "fedtailor_app/__init__.py"


def write_app(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder; choose another, or take it away first")
    for name in NAMES:
        path, text = folder / name, (TEMPLATES / f"{name}.template").read_text("utf-8")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {path.parent}: {error.strerror}; choose another") from error
        write_atomic(path, Template(text).substitute(version=__version__).encode())
