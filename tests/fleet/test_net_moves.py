"""The guest's network over time: sessions, agents, forks, sleep; and what it trusts."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from belljar.errors import AgentLost
from belljar.fleet.sandbox import Sandbox
from belljar.settings import Settings
from tests.conftest import CreateSandbox
from tests.fleet.net_host import DEADLINE_S, NetHost, echo, hello, listening, net_host

# Holds a connection, and writes down how it ended. A second one begins once the first is over.
HOLD = """
import socket
s = socket.create_connection(("echo.test", 7), 60)
s.sendall(b"x"); s.recv(1)
open("/tmp/held", "w").close()
try:
    end = "data" if s.recv(1) else "end"
except ConnectionResetError:
    end = "reset"
open("/tmp/ended.new", "w").write(end)
import os; os.rename("/tmp/ended.new", "/tmp/ended")
"""
ENDED = "until [ -e /tmp/ended ]; do sleep 0.05; done; cat /tmp/ended"


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[dict[str, int | str]]:
    async with listening(echo) as echoing, listening(hello) as web:
        yield {"echo.test": echoing, "web.test": web}


async def hold_connection(host: NetHost) -> None:
    await host.said("cat > /tmp/hold.py", stdin=HOLD)
    await host.said("setsid python3 /tmp/hold.py >/tmp/hold.log 2>&1 </dev/null & until [ -e /tmp/held ]; do sleep 0.05; done")


async def test_new_session_resets_old_connections_and_new_ones_work(
    sandbox: Sandbox, settings: Settings, servers: dict[str, int | str]
) -> None:
    async with net_host(sandbox, settings, names=servers) as host:
        await hold_connection(host)
        address = (await host.said("getent ahostsv4 web.test")).split()[0]
    async with net_host(sandbox, settings, names=servers) as host:
        assert await host.said(ENDED) == "reset"
        assert await host.said("curl -sS http://web.test/") == "hello"
        assert await host.said(f"curl -sS http://{address}/") == "hello", "the address of a name was forgotten"


async def test_forks_and_their_parent_have_a_network_each(
    sandbox: Sandbox, settings: Settings, create: CreateSandbox, servers: dict[str, int | str]
) -> None:
    async with net_host(sandbox, settings, names=servers) as host:
        await hold_connection(host)
        address = (await host.said("getent ahostsv4 web.test")).split()[0]
    children = await sandbox.fork(2)
    try:
        for each in (sandbox, *children):
            async with net_host(each, settings, names=servers) as host:
                assert await host.said(ENDED) == "reset"
                assert await host.said(f"curl -sS http://{address}/") == "hello"
                assert host.asked[-1]["name"] == "web.test"
    finally:
        for child in children:
            await child.kill()


async def test_woken_sandbox_has_its_network(sandbox: Sandbox, settings: Settings, servers: dict[str, int | str]) -> None:
    async with net_host(sandbox, settings, names=servers) as host:
        await hold_connection(host)
    await sandbox.hibernate()
    await sandbox.wake()
    async with net_host(sandbox, settings, names=servers) as host:
        assert await host.said(ENDED) == "reset"
        assert await host.said("curl -sS http://web.test/") == "hello"


async def test_connection_that_waits_over_a_change_of_host_is_made(
    sandbox: Sandbox, settings: Settings, servers: dict[str, int | str]
) -> None:
    async with net_host(sandbox, settings, names=servers, silent=True) as host:
        host.addresses = {"93.184.216.34": servers["web.test"]}
        await host.said("(curl -sS http://93.184.216.34/ > /tmp/page 2>&1; mv /tmp/page /tmp/ended) >/dev/null 2>&1 &")
        await host.wait_for_asks(1)
    async with net_host(sandbox, settings, addresses={"93.184.216.34": servers["web.test"]}) as host:
        assert await host.said(ENDED) == "hello"


async def test_new_agent_serves_the_network_again(sandbox: Sandbox, settings: Settings, servers: dict[str, int | str]) -> None:
    async with net_host(sandbox, settings, names=servers) as host:
        await hold_connection(host)
        pid = await host.said(
            "for p in /proc/[0-9]*; do read -r _ _ _ q _ < $p/stat; [ $q = 1 ] && echo ${p#/proc/}; done | sort -n | head -1"
        )
        with pytest.raises(AgentLost):
            await host.run(f"sudo kill -9 {pid}; sleep 60")
    async with net_host(sandbox, settings, names=servers) as host:
        assert (await host.link.request("hello", {}, DEADLINE_S))["agent_start"] == 2
        assert await host.said(ENDED) in ("reset", "end")
        assert await host.said("curl -sS http://web.test/") == "hello"


# -- trust


def make_certificates(folder: Path, name: str) -> str:
    """An authority, and a server's certificate by it; returns the authority's."""
    now = datetime.now(UTC) - timedelta(hours=1)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the sandbox's own authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        return made.serial_number(x509.random_serial_number()).not_valid_before(now).not_valid_after(now + timedelta(days=2))

    authority = builder(issuer, keys[0]).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    usage = x509.KeyUsage(*(field in (5, 6) for field in range(9)))
    identifier = x509.SubjectKeyIdentifier.from_public_key(keys[0].public_key())
    authority = authority.add_extension(usage, critical=True).add_extension(identifier, critical=False)
    server = builder(subject, keys[1]).add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    server = server.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()), critical=False)
    encoding = serialization.Encoding.PEM
    key = keys[1].private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(key + server.sign(keys[0], hashes.SHA256()).public_bytes(encoding))
    return authority.sign(keys[0], hashes.SHA256()).public_bytes(encoding).decode()


CLIENTS = {
    "curl": "curl -sS https://web.test/",
    "curl as root": "sudo curl -sS https://web.test/",
    "wget": "wget -qO- https://web.test/",
    "urllib": "python3 -c 'import urllib.request as r; print(r.urlopen(\"https://web.test/\").read().decode())'",
    "requests": "/opt/venv/bin/python -c 'from pip._vendor import requests; print(requests.get(\"https://web.test/\").text)'",
    "empty environment": "env -i /usr/bin/python3 -c 'import urllib.request as r; print(r.urlopen(\"https://web.test/\").read().decode())'",
}


@pytest.mark.parametrize("client", CLIENTS)
async def test_programs_trust_the_sandboxs_authority_and_no_longer(
    sandbox: Sandbox, settings: Settings, tmp_path: Path, client: str
) -> None:
    authority = make_certificates(tmp_path, "web.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    async with listening(hello, ssl=context) as port, net_host(sandbox, settings, names={"web.test": port}) as host:
        command = CLIENTS[client]
        assert (await host.run(command)).exit_code != 0, "it trusts anybody"
        await host.link.request("net.trust", {"pem": authority}, DEADLINE_S)
        assert await host.said(command) == "hello"
        await host.link.request("net.trust", {"pem": None}, DEADLINE_S)
        assert (await host.run(command)).exit_code != 0, "it still trusts the authority"


async def test_node_trusts_it_and_says_nothing_without_one(create: CreateSandbox, settings: Settings, tmp_path: Path) -> None:
    authority = make_certificates(tmp_path, "web.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    command = "node -e 'fetch(\"https://web.test/\").then(r => r.text()).then(console.log, e => console.log(e.cause.code))'"
    sandbox = await create("code-interpreter")
    async with listening(hello, ssl=context) as port, net_host(sandbox, settings, names={"web.test": port}) as host:
        before = await host.run(command)
        assert before.stdout.startswith(b"UNABLE_TO_"), before
        assert before.stderr == b"", "a program that trusts nobody special is warned about it"
        await host.link.request("net.trust", {"pem": authority}, DEADLINE_S)
        assert await host.said(command) == "hello"


async def test_context_that_was_warm_before_trusts_it_too(sandbox: Sandbox, settings: Settings, tmp_path: Path) -> None:
    """Its process was started when the template was baked."""
    authority = make_certificates(tmp_path, "web.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    async with listening(hello, ssl=context) as port, net_host(sandbox, settings, names={"web.test": port}) as host:
        await host.link.request("net.trust", {"pem": authority}, DEADLINE_S)
        code = "import pip._vendor.requests as r; print(r.get('https://web.test/').text)"
        shown = bytearray()
        async with await host.link.open("context.run", {"id": "default", "code": code}) as channel:
            async with asyncio.timeout(DEADLINE_S):
                async for item in channel:
                    shown += getattr(item, "data", b"") or repr(item).encode()
        assert b"hello" in shown, shown.decode(errors="replace")
