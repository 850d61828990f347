"""What left a site, as a table: `fedtailor flower log`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..base.errors import UserError
from ..base.sizes import size
from ..remote.audit import BROKEN, FIRST, Line, read_lines


def lines_of(home: Path) -> list[Line]:
    if not (lines := list(read_lines(home / "state" / "audit"))):
        raise UserError(f"nothing has left {home}, as far as it has a log; give a site's own folder with --home")
    return lines


def moment(text: str) -> datetime:
    try:
        given = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(f"--since {text}: a day or a moment is due, such as 2026-11-18 or 2026-11-18T09:30") from error
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def since(lines: Sequence[Line], text: str) -> list[dict[str, Any]]:
    first = moment(text) if text else datetime.min.replace(tzinfo=UTC)
    return [line.facts for line in lines if line.facts and datetime.fromisoformat(line.facts["at"]) >= first]


def verdict(lines: Sequence[Line]) -> str:
    """Why the chain cannot be trusted; empty: it can."""
    return "; ".join(f"{line.place}: {line.trouble}" for line in lines if line.trouble)


def whole(lines: Sequence[Line]) -> str:
    """A sentence about a chain that is not broken."""
    earlier = "" if lines[0].facts["before"] == FIRST else "; what was before them is not here"
    return f"{len(lines)} lines, none changed or taken out{earlier}; the last has the hash {lines[-1].hash}"


def log_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("when (UTC)", "run", "round", "asked", "left", "size", "tensors", "privacy", "why")
    for row in rows:
        tensors = row.get("tensors") or []
        names = ", ".join(dict.fromkeys(tensor["name"].partition("/")[2] for tensor in tensors[:3]))
        more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
        cells = (
            row["at"][:19],
            row.get("name") or (row.get("run") or "")[:8],
            row.get("round") or "",
            row.get("pass") or row.get("order") or "",
            row["what"],
            size(row["bytes"]) if "bytes" in row else "",
            names + more,
            "; ".join(done_to(row)),
            f"{row['why']}: {row['detail']}" if row.get("why") else row["detail"] if row["what"] == BROKEN else "",
        )
        table.add_row(*(escape(str(cell)) for cell in cells))
    return table


def done_to(row: dict[str, Any]) -> list[str]:
    """What was done to a reply before it left."""
    privacy, secure = row.get("privacy"), row.get("secure")
    told = [f"{privacy['mechanism']}, σ = {privacy['noise']['updates']:g}"] if privacy else []
    return told + ([f"in a sum with {len(secure['among'])} others"] if secure and row["tensors"] else [])
