"""The guest's side of the network in a real machine: ordinary programs inside, and a host that answers as the test says."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from belljar.errors import PortClosed
from belljar.fleet.sandbox import Sandbox
from belljar.settings import Settings
from belljar.vm.link import Data, Message
from tests.fleet.net_host import DEADLINE_S, NetHost, echo, hello, listening, net_host

# Prints which error a connection meets. A refusal that is not told to the program would be a time-out here.
TRY = """
import socket, sys
s = socket.socket(socket.{family}, socket.{kind}); s.settimeout(60)
try:
    s.{call}
    print(0)
except OSError as error:
    print(error.errno if error.errno else type(error).__name__)
"""


def attempt(address: str, port: int = 80, family: str = "AF_INET") -> str:
    return TRY.format(family=family, kind="SOCK_STREAM", call=f"connect(({address!r}, {port}))")


@pytest_asyncio.fixture
async def host(sandbox: Sandbox, settings: Settings) -> AsyncIterator[NetHost]:
    async with listening(echo) as echoing, listening(hello) as web, net_host(sandbox, settings) as host:
        host.names = {"web.test": web, "echo.test": echoing, "closed.test": 1, "far.test": echoing}
        host.addresses = {
            "93.184.216.34": web,
            "93.184.216.35": "unreachable",
            "93.184.216.36": "timeout",
            "93.184.216.37": "failed",
        }
        yield host


# -- what works


@pytest.mark.parametrize(
    "command",
    [
        "curl -sS http://web.test/",
        "curl -sS http://93.184.216.34:8080/",
        "wget -qO- http://web.test/",
        "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://web.test/\").read().decode())'",
        "/opt/venv/bin/python -c 'from pip._vendor import requests; print(requests.get(\"http://web.test/\").text)'",
        "exec 3<>/dev/tcp/web.test/80; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; tail -1 <&3",
        "sudo curl -sS http://web.test/",
    ],
)
async def test_programs_need_no_settings(host: NetHost, command: str) -> None:
    assert await host.said(command) == "hello"
    ask = host.asked[-1]
    assert ask["kind"] == "connect"
    assert (ask["name"], ask["port"]) in (("web.test", 80), (None, 8080))


async def test_names_of_every_kind(host: NetHost) -> None:
    address = (await host.said("getent ahostsv4 web.test")).split()[0]
    assert address.startswith("198.18.")
    assert (await host.said(f"getent hosts {address}")).split() == [address, "web.test"]
    assert (await host.run("getent ahostsv6 web.test | grep -v ffff")).stdout == b"", "there are no IPv6 addresses here"
    assert (await host.run("getent hosts refused.test")).exit_code == 2
    assert await host.said("getent hosts localhost | head -1 | grep -cE '127.0.0.1|::1'") == "1"
    refused = await host.run("curl -sS http://refused.test/")
    assert refused.exit_code == 6, f"curl did not take the name for one that does not exist: {refused.stderr!r}"


async def test_names_over_tcp_and_from_any_server(host: NetHost) -> None:
    program = """
import socket, struct
question = bytes.fromhex("1234010000010000000000000377656204746573740000010001")
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(60)
u.sendto(question, ("8.8.8.8", 53)); data, server = u.recvfrom(512)
t = socket.create_connection(("9.9.9.9", 53), 60)
answers = []
for _ in range(2):
    t.sendall(struct.pack(">H", len(question)) + question)
    (size,) = struct.unpack(">H", t.recv(2, socket.MSG_WAITALL))
    answers.append(t.recv(size, socket.MSG_WAITALL))
print(server[0], socket.inet_ntoa(data[-4:]), answers == [data, data])
"""
    server, address, same = (await host.python(program)).split()
    assert server == "8.8.8.8"
    assert address.startswith("198.18.")
    assert same == "True"


async def test_a_lot_of_data_both_ways_and_half_a_connection(host: NetHost) -> None:
    program = """
import hashlib, os, socket, threading
sent, received = hashlib.sha256(), hashlib.sha256()
s = socket.create_connection(("echo.test", 7), 60)
def send():
    for _ in range(256):
        data = os.urandom(65536); sent.update(data); s.sendall(data)
    s.shutdown(socket.SHUT_WR)
thread = threading.Thread(target=send); thread.start()
total = 0
while data := s.recv(65536):
    total += len(data); received.update(data)
thread.join()
print(total, sent.digest() == received.digest())
"""
    assert await host.python(program) == f"{256 * 65536} True"


async def test_traffic_within_the_sandbox_stays_there(host: NetHost) -> None:
    program = """
import socket
for address in ("127.0.0.1", "127.0.0.9", "198.18.0.1", socket.gethostname()):
    server = socket.create_server((address, 0))
    client = socket.create_connection(server.getsockname(), 60)
    client.sendall(b"x"); print(server.accept()[0].recv(1).decode(), end="")
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(("127.0.0.1", 0)); u.sendto(b"y", u.getsockname()); print(u.recv(1).decode())
"""
    assert await host.python(program) == "xxxxy"
    assert host.asked == []


async def test_program_sees_addresses_that_make_sense(host: NetHost) -> None:
    program = (
        "import socket; s = socket.create_connection(('93.184.216.34', 81), 60); print(*s.getsockname()[:1], *s.getpeername())"
    )
    assert await host.python(program) == "198.18.0.1 93.184.216.34 81"


async def test_one_source_port_for_two_targets(host: NetHost) -> None:
    program = """
import socket
socks = []
for name in ("echo.test", "far.test"):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.settimeout(60)
    s.bind(("0.0.0.0", 40404)); s.connect((name, 7)); socks.append(s)
for number, s in enumerate(socks):
    s.sendall(b"%d" % number); print(s.recv(1).decode(), end="")
"""
    assert await host.python(program) == "01"


# -- what does not


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("1.1.1.1", errno.ECONNREFUSED),
        ("169.254.169.254", errno.ECONNREFUSED),
        ("10.0.0.1", errno.ECONNREFUSED),
        ("93.184.216.35", errno.EHOSTUNREACH),
        ("93.184.216.36", errno.ETIMEDOUT),
        ("93.184.216.37", errno.ECONNREFUSED),
        ("closed.test", errno.ECONNREFUSED),
        ("198.19.200.200", errno.ECONNREFUSED),
        ("255.255.255.255", errno.ENETUNREACH),
    ],
)
async def test_refused_connection_fails_in_connect(host: NetHost, address: str, expected: int) -> None:
    assert await host.python(attempt(address)) == str(expected)


async def test_a_connection_that_timed_out_is_not_asked_for_again(host: NetHost) -> None:
    """The kernel goes on sending its first packet until it gives up. Another port of the program is another try."""
    assert await host.python(attempt("93.184.216.36")) == str(errno.ETIMEDOUT)
    assert len(host.asked) == 1, host.asked
    host.addresses["93.184.216.36"] = host.addresses["93.184.216.34"]
    assert await host.python(attempt("93.184.216.36")) == "0"


async def test_ipv6_has_no_way_out(host: NetHost) -> None:
    assert await host.python(attempt("2001:db8::1", family="AF_INET6")) == str(errno.ENETUNREACH)
    mapped = await host.python(attempt("::ffff:93.184.216.40", family="AF_INET6"))
    assert mapped == str(errno.ECONNREFUSED)
    assert host.asked[-1]["address"] == "93.184.216.40", "a mapped address is an IPv4 connection, and judged as one"


async def test_other_protocols_are_refused_at_once(host: NetHost) -> None:
    for kind, call in (("SOCK_DGRAM", "sendto(b'x', ('8.8.8.8', 123))"), ("SOCK_DGRAM", "sendto(b'x', ('8.8.8.8', 443))")):
        assert await host.python(TRY.format(family="AF_INET", kind=kind, call=call)) == str(errno.EPERM)
    ping = TRY.format(family="AF_INET", kind="SOCK_RAW, 1", call="sendto(bytes(8), ('8.8.8.8', 0))")
    assert await host.python(ping, user="root") == str(errno.EPERM)
    bound = TRY.format(family="AF_INET", kind="SOCK_STREAM", call="bind(('127.0.0.1', 0)); s.connect(('8.8.8.8', 80))")
    assert await host.python(bound) == str(errno.ECONNREFUSED)
    assert host.asked == []


async def test_connect_waits_for_the_verdict(host: NetHost) -> None:
    """It does not succeed first and break later, as behind a proxy."""
    host.silent = True
    program = """
import socket
s = socket.socket(); s.settimeout(3)
try:
    s.connect(("93.184.216.34", 80)); print("connected")
except TimeoutError:
    print("waits")
"""
    assert await host.python(program) == "waits"
    assert len(host.asked) == 1, "a packet that was sent again became another ask"


async def test_reset_goes_through_both_ways(host: NetHost) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            seen.set_result(repr(await reader.read(-1)))
        except ConnectionResetError:
            seen.set_result("reset")
        writer.close()

    async with listening(reset) as resetting, listening(wait) as waiting:
        host.names |= {"reset.test": resetting, "wait.test": waiting}
        call = "connect(('reset.test', 1)); s.sendall(b'x'); s.recv(1)"
        assert await host.python(TRY.format(family="AF_INET", kind="SOCK_STREAM", call=call)) == str(errno.ECONNRESET)
        await host.python(
            "import socket, struct; s = socket.create_connection(('wait.test', 1), 60);"
            "s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()"
        )
        async with asyncio.timeout(DEADLINE_S):
            assert await seen == "reset"


# -- too much of it


async def test_many_connections_at_once(host: NetHost) -> None:
    program = """
import socket
socks = [socket.create_connection(("echo.test", 7), 60) for _ in range(150)]
for number, s in enumerate(socks): s.sendall(b"%d" % number)
print(sum(int(s.recv(9)) for s in socks) == sum(range(150)))
"""
    assert await host.python(program) == "True"


async def test_flood_of_attempts_is_refused_and_the_agent_goes_on(host: NetHost) -> None:
    program = """
import errno, socket, collections
count = collections.Counter()
for _ in range(5000):
    s = socket.socket()
    count[s.connect_ex(("10.9.8.7", 80))] += 1
    s.close()
print(count == {errno.ECONNREFUSED: 5000} or count)
"""
    assert await host.python(program, timeout_s=600) == "True"
    assert await host.said("curl -sS http://web.test/") == "hello"


async def test_asks_without_a_verdict_are_bounded(host: NetHost) -> None:
    host.silent = True
    program = """
import errno, select, socket, time
socks = [socket.socket() for _ in range(400)]
for s in socks:
    s.setblocking(False); s.connect_ex(("93.184.216.34", 80))
refused = 0
while refused < 400 - 256:
    ready = select.select([], socks, [], 60)[1]
    assert ready, refused
    for s in ready:
        assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
        socks.remove(s); refused += 1
print(refused)
"""
    assert await host.python(program) == "144"
    await host.wait_for_asks(256)
    assert len(host.asked) == 256


async def test_program_that_has_given_up_leaves_nothing(host: NetHost) -> None:
    """The host connects for one that is gone: the channel is reset, and the next connection works."""
    host.silent = True
    await host.python("import socket; s = socket.socket(); s.setblocking(False); s.connect_ex(('93.184.216.34', 80)); s.close()")
    await host.wait_for_asks(1)
    channel = await host.link.open("net.accept", {"ask": host.asked[0]["ask"]})
    with pytest.raises(Exception, match="given up"):
        await asyncio.wait_for(channel.receive(), DEADLINE_S)
    host.silent = False
    assert await host.said("curl -sS http://93.184.216.34/") == "hello"


# -- ports


async def test_ports_of_the_sandbox_are_found_and_reached(host: NetHost) -> None:
    assert (await host.link.request("net.ports", {}, DEADLINE_S))["ports"] == [], "the agent's own must not be seen"
    await host.said("cd /workspace && echo page > index.html && (python3 -m http.server 8000 >/dev/null 2>&1 &)")
    async with asyncio.timeout(DEADLINE_S):
        while not (found := (await host.link.request("net.ports", {}, DEADLINE_S))["ports"]):
            await asyncio.sleep(0.05)
    assert [(entry["port"], entry["address"], entry["process"], entry["user"]) for entry in found] == [
        (8000, "0.0.0.0", "python3", "user")
    ]
    async with await host.link.open("net.connect", {"port": 8000}) as channel:
        first = await channel.receive()
        assert isinstance(first, Message)
        assert first.body == {"connected": True}
        await channel.send(b"GET / HTTP/1.0\r\n\r\n")
        data = b"".join([item.data async for item in channel if isinstance(item, Data)])
    assert data.endswith(b"page\n")
    with pytest.raises(PortClosed, match="these ports are listened on: 8000"):
        await host.link.request("net.connect", {"port": 9}, DEADLINE_S)


async def test_agents_own_port_is_of_no_use(host: NetHost) -> None:
    call = "connect(('127.0.0.1', 1022)); s.recv(1)"
    assert await host.python(TRY.format(family="AF_INET", kind="SOCK_STREAM", call=call)) == str(errno.ECONNRESET)
    assert host.asked == []


async def test_root_without_our_rules_has_no_way_out(host: NetHost) -> None:
    remove = """
import sys; sys.path.insert(0, "/usr/lib/belljar")
from belljar.guest.net import netlink, rules
edge = lambda kind: netlink.netfilter(0, kind, 0, b"", resource=10)
batch = edge(0x10) + netlink.netfilter(10, 2, 2, netlink.text(1, "belljar"), flags=netlink.ACK) + edge(0x11)
netlink.send_acknowledged(netlink.open_netlink(netlink.NETFILTER), batch)
"""
    await host.python(remove, user="root")
    for address in ("93.184.216.34", "10.0.0.1", "169.254.169.254", "198.18.1.0"):
        program = f"import socket; s = socket.socket(); s.settimeout(2); print(s.connect_ex(({address!r}, 80)))"
        assert await host.python(program, user="root") != "0"
    assert host.asked == []
    assert (await host.said("ls /sys/class/net")).split() == ["lo"], "there is no other device"
