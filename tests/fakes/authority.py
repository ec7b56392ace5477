"""A certificate authority for tests of TLS: EC P-256 certificates that live for a day."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Authority:
    """`certificate` is the path of the CA's own; `issue` writes a certificate and a key and gives their paths."""

    folder: Path
    certificate: Path
    key: ec.EllipticCurvePrivateKey

    def issue(self, name: str) -> tuple[Path, Path]:
        """For a server (an IP address or DNS name) or a client (any name)."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            shown: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            shown = x509.DNSName(name)
        ca = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        builder = _builder(name, issuer=ca.subject, key=key).add_extension(
            x509.SubjectAlternativeName([shown]), critical=False
        )
        paths = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        paths[0].write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(_pem(key))
        return paths


def authority(folder: Path) -> Authority:
    """A new CA whose files are in `folder`."""
    folder.mkdir(parents=True)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder("ca", issuer=_name("ca"), key=key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    path = folder / "ca.crt"
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return Authority(folder, path, key)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(name: str, *, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
