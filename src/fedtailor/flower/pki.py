"""Keys and certificates of a deployment: its own certificate authority, the server's certificate, the sites' keys."""

import base64
import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_ssh_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..base.errors import UserError

CA_LIFE = timedelta(days=3652)  # ten years
SERVER_LIFE = timedelta(days=730)  # some clients refuse more than 825 days
SLACK = timedelta(days=1)  # a site's clock may be behind
ALWAYS = ("localhost", "127.0.0.1")  # how the server's own commands reach it
LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
NAME = re.compile(rf"(?=.{{1,253}}\Z)(?:{LABEL}\.)*(?!\d+\Z){LABEL}")
USES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


class Certified(NamedTuple):
    """A private key and a certificate of its public half."""

    key: EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


def make_ca(name: str) -> Certified:
    """A certificate authority that can sign servers and nothing else, for ten years."""
    extensions = x509.BasicConstraints(ca=True, path_length=0), usage("key_cert_sign", "crl_sign")
    return certified(name, None, datetime.now(UTC) + CA_LIFE, *extensions)


def make_server_certificate(ca: Certified, hosts: Sequence[str]) -> Certified:
    """A new key, certified under these names and addresses and this machine's own, for two years."""
    now, end = datetime.now(UTC), ca.certificate.not_valid_after_utc
    if end <= now:
        raise UserError(f"the federation's CA ended on {end:%Y-%m-%d}; make a new one with: fedtailor flower init DIR")
    return certified(
        "fedtailor server",
        ca,
        min(now + SERVER_LIFE, end),
        x509.BasicConstraints(ca=False, path_length=None),
        usage("digital_signature"),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName([alternative(host) for host in dict.fromkeys([*hosts, *ALWAYS])]),
    )


def certified(name: str, ca: Certified | None, until: datetime, *extensions: x509.ExtensionType) -> Certified:
    """A new key and its certificate, signed by the CA, or by the key itself."""
    key = generate_private_key(SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])  # X.509 allows no more
    signer, issuer = (ca.key, ca.certificate.subject) if ca else (key, subject)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(datetime.now(UTC) - SLACK).not_valid_after(until)
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signers = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    for extension in (*extensions, own, signers):
        builder = builder.add_extension(extension, isinstance(extension, x509.BasicConstraints | x509.KeyUsage))
    return Certified(key, builder.sign(signer, hashes.SHA256()))


def usage(*uses: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{use: use in uses for use in USES})


def alternative(host: str) -> x509.GeneralName:
    """A host as certificates name it: by DNS name or by address."""
    if NAME.fullmatch(host):
        return x509.DNSName(host)
    try:
        if "%" not in host:  # a scope means something on one machine only
            return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    raise UserError(
        f"{host!r} is not a host; give a plain name such as fed.example.org or an address such as 192.0.2.7, "
        "without https:// and without a port (that is --port)"
    )


def private_bytes(key: EllipticCurvePrivateKey, form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def read_key(path: Path) -> EllipticCurvePrivateKey | None:
    """A site's own key; None where there is none."""
    if not path.is_file():
        return None
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path} is not a site's key: {error}") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UserError(f"{path} is not a site's key: an elliptic curve is due")
    return key


def fingerprint(public: bytes) -> str:
    """Of a public key in OpenSSH format: what `ssh-keygen -l` prints."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def certificate_fingerprint(pem: bytes) -> str:
    """What `openssl x509 -noout -fingerprint -sha256` prints, in small letters and without colons."""
    return "SHA256:" + x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()
