"""Who may come in: the sites' public keys, a file each, which come and go while the server runs."""

import logging
import re
import time
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from ..base.errors import UserError

log = logging.getLogger("fedtailor.flower")
CURVES = {"secp256r1", "secp384r1", "secp521r1"}
SETTLED = 2_000_000_000  # nanoseconds after which a folder's time tells of every later change


class SiteKeys:
    """Site → its key as Flower writes it. Read anew when the folder has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen, self.known = folder, -1, dict[str, bytes]()

    def __call__(self) -> dict[str, bytes]:
        now = self.folder.stat().st_mtime_ns if self.folder.is_dir() else 0
        if now != self.seen:
            self.known = self.read()
            self.seen = now if time.time_ns() - now > SETTLED else -1
        return self.known

    def read(self) -> dict[str, bytes]:
        """What is no key lets nobody in, and keeps nobody else out."""
        found = {}
        for path in sorted(self.folder.glob("*.pub"), key=lambda path: by_number(path.stem)):
            try:
                found[path.stem] = read_key(path).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            except UserError as error:
                log.error("%s is not let in: %s", path.stem, error)
        return found


def read_key(path: Path) -> EllipticCurvePublicKey:
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path} is not a public key ({error}); fedtailor flower join makes client.pub") from error
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in CURVES:
        raise UserError(f"{path} is not a key that Flower takes; fedtailor flower join makes client.pub")
    return key


def by_number(name: str) -> list[str | int]:
    """client-2 before client-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", name)]
