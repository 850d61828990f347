"""Text on a terminal: as it is, whoever wrote it. Names of classes, sites and files come from anywhere."""

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

# What steers a terminal rather than being shown by it: control characters but for tab and line feed, those that turn
# the direction of writing round, other ends of lines; and bytes of a file's name that are not UTF-8.
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """With what steers a terminal written out: `\\x1b`, `\\u202e`."""
    return STEERING.sub(lambda found: spelled_out(ord(found[0])), text)


def spelled_out(code: int) -> str:
    byte = code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code  # where Python puts a byte that is not UTF-8
    return f"\\x{byte:02x}" if byte < 0x100 else f"\\u{byte:04x}"


def visible_json(text: str) -> str:
    """The same document, for whoever reads it as JSON."""
    return STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Terminal(Console):
    """All that verbs print goes through one of these. Nothing is markup; style is told beside the text, or by Text."""

    def __init__(self, stderr: bool = False, **how: Any) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, **how)

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(visible(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))
