"""Which authorities programs trust."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from belljar.errors import Conflict, InvalidInput
from belljar.guest.net.trust import BUNDLE, LISTED, OWN
from tests.guest.conftest import Guest


def make_authority(name: str) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def trusted(bundle: Path) -> set[str]:
    """Common names, as OpenSSL reads the bundle."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=bundle)
    return {dict(pair[0] for pair in certificate["subject"])["commonName"] for certificate in context.get_ca_certs()}


async def test_authority_is_added_replaced_and_removed(guest: Guest) -> None:
    root = guest.etc.parent
    bundle = root / BUNDLE
    bundle.write_text(make_authority("system").rstrip("\n"))  # without a final line end
    await guest.ask("net.trust", pem=make_authority("first"))
    assert trusted(bundle) == {"system", "first"}
    assert (root / LISTED).read_text() == (root / OWN).read_text() != ""
    await guest.ask("net.trust", pem=make_authority("second"))
    assert trusted(bundle) == {"system", "second"}
    await guest.ask("net.trust", pem=None)
    assert trusted(bundle) == {"system"}
    assert not (root / LISTED).is_symlink()
    assert (root / OWN).read_text() == ""


async def test_authorities_that_others_add_stay(guest: Guest) -> None:
    bundle = guest.etc.parent / BUNDLE
    await guest.ask("net.trust", pem=make_authority("ours"))
    with bundle.open("a") as file:
        file.write(make_authority("theirs"))
    await guest.ask("net.trust", pem=make_authority("newer"))
    assert trusted(bundle) == {"theirs", "newer"}


@pytest.mark.parametrize("pem", ["", "x", "-----BEGIN CERTIFICATE-----\n", "x" * 100_000, 5])
async def test_what_is_no_certificate_is_refused(guest: Guest, pem: object) -> None:
    with pytest.raises(InvalidInput):
        await guest.ask("net.trust", pem=pem)


async def test_bundle_that_is_no_file_is_a_conflict_and_nothing_hangs(guest: Guest) -> None:
    bundle = guest.etc.parent / BUNDLE
    bundle.unlink()
    os.mkfifo(bundle)
    with pytest.raises(Conflict):
        await guest.ask("net.trust", pem=make_authority("ours"))


async def test_every_process_is_told_where_authorities_are(guest: Guest) -> None:
    done = await guest.run("env")
    told = dict(line.split("=", 1) for line in done.stdout.decode().splitlines() if "=" in line)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO"):
        assert told[name] == str(guest.etc.parent / BUNDLE)
    assert Path(told["NODE_EXTRA_CA_CERTS"]).exists(), "Node.js would complain in every program"
