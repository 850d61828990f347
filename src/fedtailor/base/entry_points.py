"""What other installed packages bring, as they say in their entry points. Nothing of it is imported to find it."""

from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

GROUPS = ("fedtailor.methods", "fedtailor.tuners", "fedtailor.labelers")


def found(group: str) -> list[EntryPoint]:
    return sorted(entry_points(group=group), key=lambda point: (point.name, point.value))


def state_of_others() -> list[str]:
    """A line for each entry point, and for each file of its package: another line whenever something has changed."""
    points = [(group, point) for group in GROUPS for point in found(group)]
    lines = [f"{group} {point.name} {point.value} {point.dist and point.dist.version}" for group, point in points]
    for package in sorted({point.module.partition(".")[0] for _, point in points}):
        with suppress(ImportError, ValueError):  # gone since it was installed
            spec = find_spec(package)
            path = Path(spec.origin) if spec and spec.origin else Path()
            lines += files(path.parent) if path.name == "__init__.py" else [stat_of(path)]
    return lines


def files(folder: Path, endings: tuple[str, ...] = (".py", ".toml")) -> list[str]:
    return [stat_of(path) for path in sorted(folder.rglob("*")) if path.suffix in endings]


def stat_of(path: Path) -> str:
    with suppress(FileNotFoundError):  # an editor is just saving it
        stat = path.stat()
        return f"{path} {stat.st_size} {stat.st_mtime_ns}"
    return str(path)
