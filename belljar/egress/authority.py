"""A certificate authority of one sandbox's own, with which the host speaks for the few names that have secrets.

The guest trusts it, and nobody else does. Its key never enters the guest, and a fork's children get others: what one of them does
with its copy of a connection tells nothing about another's.
"""

from __future__ import annotations

import datetime
import os
import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA_DAYS = 3650
LEAF_DAYS = 30
RENEW_DAYS = 15
_DAY = datetime.timedelta(days=1)


class Authority:
    """Key and certificate; `certificate` is what the guest is told to trust."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate
        self._contexts: dict[str, tuple[datetime.datetime, ssl.SSLContext]] = {}

    @classmethod
    def create(cls, sandbox_id: str) -> Authority:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, f"Belljar sandbox {sandbox_id}"[:64])])
        builder = _builder(subject, subject, key.public_key(), CA_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def load(cls, text: str) -> Authority:
        """As `save` wrote it."""
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = serialization.load_pem_private_key(text.encode(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority's key is of another kind")
        return cls(key, x509.load_pem_x509_certificate(text.encode()))

    def save(self) -> str:
        return _pem_of_key(self._key) + self.certificate

    @property
    def certificate(self) -> str:
        return _pem(self._certificate)

    def server_context(self, host: str) -> ssl.SSLContext:
        """To be `host` towards the guest, in HTTP/1.1."""
        now = datetime.datetime.now(datetime.UTC)
        kept = self._contexts.get(host)
        if kept is None or kept[0] < now:
            kept = self._contexts[host] = (now + _DAY * RENEW_DAYS, self._make_context(host))
        return kept[1]

    def _make_context(self, host: str) -> ssl.SSLContext:
        key, certificate = self._issue(host)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # OpenSSL's loader wants a file. This one is in memory only, and gone when it is read.
        fd = os.memfd_create("leaf", os.MFD_CLOEXEC)
        try:
            os.write(fd, (_pem_of_key(key) + _pem(certificate)).encode())
            context.load_cert_chain(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        return context

    def _issue(self, host: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        # A common name has at most 64 characters; the name that counts is the alternative one.
        subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, host)] if len(host) <= 64 else [])
        builder = _builder(subject, self._certificate.subject, key.public_key(), LEAF_DAYS)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        for extension, critical in (
            (x509.SubjectAlternativeName([x509.DNSName(host)]), len(host) > 64),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
            (issuer, False),
        ):
            builder = builder.add_extension(extension, critical=critical)
        return key, builder.sign(self._key, hashes.SHA256())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(issuer_name=issuer, subject_name=subject, public_key=key)
    # From yesterday on: clocks in guests may be behind.
    return builder.serial_number(x509.random_serial_number()).not_valid_before(now - _DAY).not_valid_after(now + _DAY * days)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
