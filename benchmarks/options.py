"""What one run of the benchmarks was asked for."""

from dataclasses import dataclass
from pathlib import Path

SHAPE_NAMES = ("vit-b16", "vit-b32", "bundled", "tiny")


@dataclass(frozen=True)
class Options:
    quick: bool = False  # small shapes, once, in this process: whether it works, not how fast it is
    shape: str = "vit-b16"
    threads: int = 1  # of torch's, where one step is measured
    repeats: int = 3  # of which the median counts
    engines: tuple[str, ...] = ()  # by name; none: all whose clients are in this process
    cases: tuple[str, ...] = ()  # of `step`, `round` and `attacks`, by name; none: all
    json: Path = Path("benchmarks.json")

    @property
    def times(self) -> int:
        return 1 if self.quick else self.repeats

    @property
    def clip(self) -> str:
        return "tiny" if self.quick else self.shape
