"""Certificates and keys for tests of TLS and for a cluster: a CA, the servers' certificates, clients' by group, the key
of ServiceAccount tokens.

EC P-256, made for the run and good for a day. Source of the certificates' fields: the API server reads a client's user
name from the subject's common name and its groups from the organisations.
"""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""Of a CA: newer Pythons refuse one that does not say so."""


class Pair(NamedTuple):
    """The paths of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A CA whose files are in `folder`: `ca.crt` for those who trust it."""

    def __init__(self, folder: Path, name: str = "gpuplane tests") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(_SIGNS, critical=True)
        )
        self.certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    @property
    def pem(self) -> str:
        """The CA's certificate as text."""
        return self.certificate.read_text()

    def issue(
        self, name: str, *, hosts: tuple[str, ...] = ("127.0.0.1", "localhost"), groups: tuple[str, ...] = ()
    ) -> Pair:
        """A certificate good for a server under `hosts` and for a client called `name` of `groups`."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(subject, self._name, key.public_key())
            .add_extension(x509.SubjectAlternativeName([_shown(host) for host in hosts]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        file = name.replace(":", "-").replace("/", "-")
        pair = Pair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        pair.certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        _write_key(pair.key, key)
        return pair


def token_keys(folder: Path) -> Pair:
    """The public and private key that sign ServiceAccount tokens."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pair = Pair(folder / "service-accounts.pub", folder / "service-accounts.key")
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    pair.certificate.write_bytes(public)
    _write_key(pair.key, key)
    return pair


def _shown(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_key(path: Path, key: CertificateIssuerPrivateKeyTypes) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.touch(mode=0o600)
    path.write_bytes(pem)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )
