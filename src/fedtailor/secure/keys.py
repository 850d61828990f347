"""What secure sums are computed with. Every primitive is the library's: X25519, HKDF-SHA256, AES-256 in counter mode
for masks and in GCM for what is sealed, ECDSA for signatures (cryptography); Shamir's sharing (pycryptodome)."""

import os
from typing import NamedTuple

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..base.errors import UserError
from .encoding import Words

SECRET = 32  # bytes of a private key, and of a seed
HALF = 16  # bytes that Shamir's sharing takes at a time
PLACE = 2  # bytes of a share's number
NONCE = 12


class Pair(NamedTuple):
    private: bytes
    public: bytes


def new_pair() -> Pair:
    private = os.urandom(SECRET)
    return Pair(private, public_of(private))


def new_seed() -> bytes:
    return os.urandom(SECRET)


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, purpose: str) -> bytes:
    """The key that two sides have in common, each by its own private and the other's public half."""
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise UserError("a public key is none") from error
    return derived(secret, purpose)


def derived(secret: bytes, purpose: str) -> bytes:
    return HKDF(SHA256(), SECRET, salt=None, info=f"fedtailor {purpose}".encode()).derive(secret)


def mask(key: bytes, words: int) -> Words:
    """So many uniform words. A key is for one mask."""
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(8 * words))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def seal(key: bytes, text: bytes, about: str) -> bytes:
    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, text, about.encode())


def unseal(key: bytes, sealed: bytes, about: str) -> bytes:
    try:
        return AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], about.encode())
    except (InvalidTag, ValueError) as error:
        raise UserError(f"what was sealed cannot be opened ({about})") from error


def split(secret: bytes, least: int, holders: int) -> list[bytes]:
    """A share for each holder; so many of them are needed, and fewer tell nothing."""
    halves = [Shamir.split(least, holders, secret[at : at + HALF], ssss=False) for at in (0, HALF)]
    return [n.to_bytes(PLACE, "big") + first + second for (n, first), (_, second) in zip(*halves, strict=True)]


def join(shares: list[bytes]) -> bytes:
    """The secret, of exactly as many shares as it takes."""
    placed = [(int.from_bytes(share[:PLACE], "big"), share[PLACE:]) for share in shares]
    try:
        return b"".join(
            Shamir.combine([(n, both[at : at + HALF]) for n, both in placed], ssss=False) for at in (0, HALF)
        )
    except ValueError as error:  # two with the same number
        raise UserError(f"shares do not go together ({error})") from error


def sign(key: EllipticCurvePrivateKey, text: str) -> bytes:
    return key.sign(text.encode(), ECDSA(SHA256()))


def signed(key: EllipticCurvePublicKey, signature: bytes, text: str) -> bool:
    try:
        key.verify(signature, text.encode(), ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True
