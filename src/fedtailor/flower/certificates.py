"""How long the server's certificate, and the CA's that vouches for it, will do."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.x509 import load_pem_x509_certificate

SOON = timedelta(days=30)
FILES = {"server": "server.pem", "ca": "ca.pem"}
TODO = {
    "server": "make a new one with fedtailor flower renew",
    "ca": "make a new federation with fedtailor flower init",
}


def ends_of(folder: Path) -> dict[str, datetime]:
    """Of the server's folder: when each ends."""
    return {
        kind: load_pem_x509_certificate((folder / name).read_bytes()).not_valid_after_utc
        for kind, name in FILES.items()
    }


def ending(folder: Path) -> list[str]:
    """A sentence for each that ends soon, or has."""
    now, told = datetime.now(UTC), []
    for kind, end in ends_of(folder).items():
        if (left := end - now) < SOON:
            when = f"ends on {end:%Y-%m-%d}, in {left.days} days" if left.days >= 0 else f"ended on {end:%Y-%m-%d}"
            told.append(f"the {'CA' if kind == 'ca' else kind}'s certificate {when}; {TODO[kind]}")
    return told
