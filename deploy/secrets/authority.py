"""A certificate authority of one's own, and what it signs."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 365
# The clocks of two machines differ.
_BACKDATED = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in PEM form."""

    cert: bytes
    key: bytes

    @classmethod
    def of(cls, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Self:
        return cls(
            cert.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )


class Authority:
    def __init__(self, pair: Pair) -> None:
        """Raises ValueError if it is none."""
        self.pair = pair
        self._cert = x509.load_pem_x509_certificate(pair.cert)
        key = serialization.load_pem_private_key(pair.key, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the CA is not one that was made here")
        if key.public_key() != self._cert.public_key():
            raise ValueError("key and certificate of the CA do not belong together")
        self._key = key

    @classmethod
    def create(cls, name: str, days: float = AUTHORITY_DAYS) -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        subject = _name(name)
        builder = _builder(subject, subject, key, days)
        cert = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(Pair.of(cert, key))

    def issue(
        self,
        name: str,
        hosts: Sequence[str],
        purposes: Sequence[x509.ObjectIdentifier],
        days: float = CERTIFICATE_DAYS,
    ) -> Pair:
        """For servers at `hosts`, names or IP addresses, or for clients, which have none. It
        ends with the CA at the latest; fewer than 0 `days`: it has ended."""
        key = ec.generate_private_key(ec.SECP256R1())
        days = min(days, days_left(self.pair.cert))
        builder = (
            _builder(_name(name), self._cert.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return Pair.of(builder.sign(self._key, hashes.SHA256()), key)


def same_host(text: str) -> str:
    """As `hosts_of` has it: an address may be written in several ways."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text


def is_pair(pair: Pair, bundle: bytes) -> bool:
    """Whether the key is the certificate's, and one of the `bundle` has signed that."""
    try:
        cert = x509.load_pem_x509_certificate(pair.cert)
        key = serialization.load_pem_private_key(pair.key, None)
        signers = x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return False
    return key.public_key() == cert.public_key() and any(_signed(cert, by) for by in signers)


def hosts_of(cert: bytes) -> frozenset[str]:
    """The names and addresses that a certificate is for."""
    try:
        names = x509.load_pem_x509_certificate(cert).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = names.value.get_values_for_type(x509.IPAddress)
    return frozenset(
        [*names.value.get_values_for_type(x509.DNSName), *(str(one) for one in addresses)]
    )


def days_left(cert: bytes) -> float:
    left = x509.load_pem_x509_certificate(cert).not_valid_after_utc - datetime.now(UTC)
    return left / timedelta(days=1)


def _signed(cert: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(by)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    end = datetime.now(UTC) + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(datetime.now(UTC), end) - _BACKDATED)
        .not_valid_after(end)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
