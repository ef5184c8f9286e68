"""Certificates for receivers: a good one, and one for each defect."""

from __future__ import annotations

import datetime as dt
import ssl
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)
_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Authority:
    """A certificate authority; clients trust ``file``."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    folder: Path

    @property
    def file(self) -> str:
        path = self.folder / "authority.pem"
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return str(path)

    def serving(self, *names: str, ends: dt.datetime = NOW + DAY) -> ssl.SSLContext:
        """Return a server's context with a certificate for these names and addresses."""
        key = _key()
        built = _builder(names[0], key, ends).issuer_name(self.certificate.subject)
        built = built.add_extension(_alternatives(names), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        built = built.add_extension(issuer, critical=False)
        return self._context(built.sign(self.key, hashes.SHA256()), key)

    def serving_self_signed(self, *names: str) -> ssl.SSLContext:
        key = _key()
        built = _builder(names[0], key, NOW + DAY).issuer_name(_name(names[0]))
        built = built.add_extension(_alternatives(names), critical=False)
        return self._context(built.sign(key, hashes.SHA256()), key)

    def _context(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> ssl.SSLContext:
        path = self.folder / f"{certificate.serial_number}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


@cache
def authority(folder: Path) -> Authority:
    key = _key()
    name = _name("Test authority")
    built = _builder("Test authority", key, NOW + DAY).issuer_name(name)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    built = built.add_extension(_SIGNS, critical=True)
    return Authority(key, built.sign(key, hashes.SHA256()), folder)


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    name: str, key: ec.EllipticCurvePrivateKey, ends: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(NOW, ends) - DAY)
        .not_valid_after(ends)
        # Python 3.13 and later require it in every chain.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _alternatives(names: tuple[str, ...]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([_alternative(each) for each in names])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
