"""Sandboxes through the SDK: made, found, forked, put to sleep, ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import belljar
from belljar import AsyncClient, AsyncSandbox, Client, Sandbox, errors
from tests.sdk.conftest import MakeBox
from tests.server.conftest import Server


@pytest.fixture
def default(client: Client) -> Iterator[Client]:
    belljar.set_default_client(client)
    yield client
    belljar.set_default_client(None)


def test_the_constructor_creates_and_the_block_ends(default: Client) -> None:
    with Sandbox(template="base", metadata={"made": "here"}, ttl_seconds=900, env={"COLOUR": "blue"}, disk_mb=12_000) as made:
        assert made.status == "running" and made.metadata == {"made": "here"} and made.data["disk_mb"] == 12_000
        assert made.exec("echo $COLOUR").stdout == "blue\n"
        assert made.run("echo $0 | grep -o bash").text == "bash\n"
        again = Sandbox(id=made.id)
        assert again == made and again.exec("echo same").stdout == "same\n" and again.run("echo too").stdout == "too\n"
    with pytest.raises(errors.SandboxNotFound):
        Sandbox.get(made.id)
    made.close()  # a second end is no error


def test_a_persistent_sandbox_outlives_its_block(default: Client) -> None:
    with Sandbox("base", persistent=True) as made:
        pass
    try:
        assert Sandbox.get(made.id).persistent
    finally:
        made.close()


def test_sizes_are_the_templates(default: Client) -> None:
    with pytest.warns(DeprecationWarning, match="template"), Sandbox("base", cpu=1, memory_mb=512) as made:
        assert made.memory_mb == default.templates.get("base").memory_mb


def test_volumes_are_refused_and_nothing_is_made(default: Client) -> None:
    before = {found.id for found in Sandbox.list()}
    with pytest.raises(errors.NotSupported, match="volumes"):
        Sandbox(template="base", volumes=[{"name": "v"}])
    assert {found.id for found in Sandbox.list()} == before


def test_lists_are_filtered_and_paged(client: Client, make: MakeBox) -> None:
    first, second = make(metadata={"team": "red", "n": "1"}), make(metadata={"team": "red", "n": "2"})
    assert [found.id for found in client.sandboxes.list(metadata={"team": "red"})] == [first.id, second.id]
    assert [found.id for found in client.sandboxes.list(metadata={"team": "red", "n": "2"})] == [second.id]
    second.hibernate()
    assert [found.id for found in client.sandboxes.list(metadata={"team": "red"}, status="hibernated")] == [second.id]
    assert [found.id for found in client.sandboxes.iterate(metadata={"team": "red"}, page_size=1)] == [first.id, second.id]


def test_forks_know_their_parent(make: MakeBox) -> None:
    parent = make()
    parent.contexts.run("secret = 6 * 7")
    one, two = parent.fork(2)
    child = parent.fork({"kind": "only"})
    try:
        assert child.data["parent_id"] == parent.id and child.metadata["kind"] == "only"
        one.contexts.run("secret = 0")
        assert [box.contexts.run("secret").text for box in (one, two, child)] == ["0", "42", "42"]
    finally:
        for box in (one, two, child):
            box.kill()


def test_snapshots_are_ids_that_know_more(client: Client, make: MakeBox) -> None:
    box = make()
    taken = box.snapshot({"step": "1"})
    try:
        assert taken == taken.id and taken.sandbox_id == box.id and (taken.size_bytes or 0) > 0 and taken.metadata == {"step": "1"}
        assert taken in [item["id"] for item in client.snapshots.iterate(sandbox_id=box.id, page_size=1)]
    finally:
        client.snapshots.delete(taken)


def test_events_are_read_and_followed(client: Client, make: MakeBox) -> None:
    box = make()
    box.pause()
    assert [event.type for event in box.events()] == ["sandbox.created", "sandbox.paused"]
    last = list(box.events())[-1]
    resume = threading.Timer(0.3, box.resume)
    resume.start()
    with box.events(follow=True, after=last.seq) as following:
        event = next(following)
    resume.join()
    assert (event.type, event.sandbox_id) == ("sandbox.resumed", box.id)
    assert event.seq in [found.seq for found in client.events(tail=50)]


def test_a_sleeping_sandbox_has_no_stats_and_wakes_when_it_is_needed(make: MakeBox) -> None:
    box = make()
    assert {"guest", "host"} <= set(box.stats())
    box.hibernate()
    with pytest.raises(errors.WrongState):
        box.stats()
    assert box.exec("echo awake").stdout == "awake\n"


def test_logs_have_what_commands_wrote(make: MakeBox) -> None:
    box = make()
    box.exec("echo to the log")
    assert "to the log" in "\n".join(box.logs())


def test_who_we_are(client: Client, sdk_server: Server) -> None:
    assert client.me()["admin"] is True and client.version()["name"] == "belljar"
    token = client.tokens.create("other", workspace="elsewhere")
    with Client(sdk_server.url, token.token) as other:
        assert other.me()["workspace"] == "elsewhere" and other.sandboxes.list() == []
        with pytest.raises(errors.Forbidden):
            other.tokens.create("more", admin=True)
    client.tokens.revoke(token.prefix)


async def test_the_same_awaited(aclient: AsyncClient) -> None:
    async with AsyncSandbox(template="base", client=aclient, metadata={"kind": "awaited"}) as made:
        assert (await made.exec("echo in")).stdout == "in\n"
        seen: list[str] = []

        async def keep(text: str) -> None:
            seen.append(text)

        assert await made.exec_stream("echo streamed; exit 2", keep) == 2 and seen == ["streamed\n"]
        first, second = await made.fork(2)
        assert [found.id async for found in aclient.sandboxes.iterate(metadata={"fork_parent_id": made.id}, page_size=1)] == [
            first.id,
            second.id,
        ]
        await first.close()
        await second.close()
        assert [event.type async for event in made.events(tail=1)] == ["sandbox.forked"]
        with pytest.raises(belljar.SandboxTimeout):
            await made.exec("sleep 60", timeout_seconds=1)
    with pytest.raises(errors.SandboxNotFound):
        await aclient.sandboxes.get(made.id)
    alone = await AsyncSandbox("base", client=aclient)
    assert alone.status == "running"
    await alone.kill()


async def test_exploring_awaited(aclient: AsyncClient) -> None:
    async def good(box: AsyncSandbox) -> str:
        return (await box.exec("echo good")).stdout

    async with AsyncSandbox("base", client=aclient) as parent:
        candidates = [belljar.Candidate.call("fine", good, score=3.0), belljar.Candidate.shell("bad", "exit 1")]
        found = await parent.explore(candidates, capture_files=False)
        assert found.winner_outcome is not None and found.winner_outcome.value == "good\n" and found.best()[0].label == "fine"
        assert (await found.winner.exec("echo alive")).stdout == "alive\n"
        await found.winner.kill()
        left = [box.id for box in await aclient.sandboxes.list(metadata={"fork_parent_id": parent.id})]
        assert left == []
