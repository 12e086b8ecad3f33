"""Connections of replicas to an ingress: who may speak, in which order, and how they end."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from jitney_cluster import back_channel
from jitney_cluster.back_channel import FRAME_BYTES_MAX, BackChannel, IngressConnection
from jitney_cluster.replica_messages import (
    Address,
    OrderAccepted,
    ReplicaHello,
    ReplicaMessage,
    encode_frame,
)
from tests.unit.cluster.conftest import until


def unasked(_: IngressConnection, characters_max: int) -> None:
    raise AssertionError(characters_max)


class Ingress:
    """The end of an ingress, and what it got."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, ReplicaMessage]] = []
        self.lost: list[str] = []
        self.channel = BackChannel("127.0.0.1", self._take, self.lost.append)
        self.address: Address
        self.ends = contextlib.ExitStack()
        """Closes the other ends of its connections."""

    def _take(self, replica: str, message: ReplicaMessage) -> None:
        self.taken.append((replica, message))

    async def connected(self, *names: str) -> None:
        """Wait until these replicas are connected, and no others."""
        await until(lambda: set(self.channel.replicas) == set(names))

    async def connect(self, name: str) -> IngressConnection:
        """A replica that is connected."""
        connection = await IngressConnection.connect(self.address, name, unasked)
        self.ends.callback(connection.close)
        await until(lambda: name in self.channel.replicas)
        return connection

    async def stranger(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of somebody who has said nothing yet."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        self.ends.callback(writer.close)
        return reader, writer

    def hello(self, name: str = "r1") -> bytes:
        """The frame with which a replica begins."""
        return framed(ReplicaHello(self.address.secret, name))

    async def refuse(self, sent: bytes) -> None:
        """Connect, send these bytes, and wait until the ingress has ended the connection."""
        reader, writer = await self.stranger()
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b"", "an ingress never writes"


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Ingress]:
    ingress = Ingress()
    ingress.address = await ingress.channel.open()
    try:
        with ingress.ends:
            yield ingress
    finally:
        await ingress.channel.close()
        await ingress.connected()


def framed(*messages: ReplicaMessage) -> bytes:
    frame = encode_frame(list(messages))
    return struct.pack(">I", len(frame)) + frame


ACCEPTED = framed(OrderAccepted("q", 1))


async def test_frames_arrive_in_order() -> None:
    async with opened() as ingress:
        connection = await ingress.connect("r1")
        expected: list[ReplicaMessage] = [
            OrderAccepted(str(number), number) for number in range(300)
        ]
        for at in range(0, 300, 3):
            connection.send(expected[at : at + 3])
        connection.send([])
        await until(lambda: len(ingress.taken) == 300)
        assert ingress.taken == [("r1", message) for message in expected]
        assert ingress.channel.replicas == ["r1"]


async def test_frames_arrive_in_whatever_pieces_they_come() -> None:
    async with opened() as ingress:
        _, writer = await ingress.stranger()
        sent = ingress.hello() + ACCEPTED
        for at in range(len(sent)):
            writer.write(sent[at : at + 1])
            await writer.drain()
        await until(lambda: bool(ingress.taken))
        assert ingress.taken == [("r1", OrderAccepted("q", 1))]


async def test_several_replicas_are_told_apart() -> None:
    async with opened() as ingress:
        connections = {name: await ingress.connect(name) for name in ("a", "b")}
        for name, connection in connections.items():
            connection.send([OrderAccepted(f"of {name}", 1)])
        await until(lambda: len(ingress.taken) == 2)
        assert set(ingress.taken) == {
            (name, OrderAccepted(f"of {name}", 1)) for name in connections
        }
        connections["a"].close()
        await ingress.connected("b")
        assert ingress.lost == ["a"]


@pytest.mark.parametrize(
    "sent",
    [
        *(
            pytest.param(framed(ReplicaHello(secret, "r1")) + ACCEPTED, id=f"secret {secret}")
            for secret in ("", "wrong", "0" * 32, "\u00e9" * 32)
        ),
        pytest.param(framed(ReplicaHello("x" * 2000, "r1")), id="a long secret"),
        pytest.param(ACCEPTED, id="another message"),
        pytest.param(framed(), id="no message"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
        pytest.param(struct.pack(">I", 3) + b"\xc1\xc1\xc1", id="garbage"),
    ],
)
async def test_who_does_not_begin_with_the_secret_is_refused_without_a_word(sent: bytes) -> None:
    """Guards invariant 6: whoever reaches the port cannot speak for a replica, or fill the log."""
    complaints: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, complaint: complaints.append(complaint))
    async with opened() as ingress:
        await ingress.refuse(sent)
        assert (ingress.taken, ingress.lost, ingress.channel.replicas) == ([], [], [])
    assert complaints == []


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(struct.pack(">I", FRAME_BYTES_MAX + 1), id="too long"),
        pytest.param(struct.pack(">I", 3) + b"\xc1\xc1\xc1", id="garbage"),
    ],
)
async def test_a_damaged_frame_ends_the_connection(sent: bytes) -> None:
    """Guards the ingress: after such a frame nothing that follows can be trusted."""
    async with opened() as ingress:
        good, late = framed(OrderAccepted("good", 1)), framed(OrderAccepted("late", 1))
        await ingress.refuse(ingress.hello() + good + sent + late)
        await ingress.connected()
        assert ingress.taken == [("r1", OrderAccepted("good", 1))]
        assert ingress.lost == ["r1"]


async def test_half_a_frame_is_never_taken() -> None:
    """Guards invariant 5: a replica that dies while it sends has not sent that frame."""
    async with opened() as ingress:
        _, writer = await ingress.stranger()
        writer.write(ingress.hello() + ACCEPTED[:-1])
        await ingress.connected("r1")
        writer.close()
        await ingress.connected()
        assert (ingress.taken, ingress.lost) == ([], ["r1"])


async def test_a_replica_has_one_connection() -> None:
    """Guards the first connection: a second one of that name neither speaks nor ends it."""
    async with opened() as ingress:
        connection = await ingress.connect("r1")
        await ingress.refuse(ingress.hello() + framed(OrderAccepted("second", 1)))
        assert ingress.lost == []
        connection.send([OrderAccepted("first", 1)])
        await until(lambda: bool(ingress.taken))
        assert ingress.taken == [("r1", OrderAccepted("first", 1))]


async def test_the_end_of_a_replica_is_told_once_and_it_may_come_again() -> None:
    """Guards moves: a request that lost its replica must be sent on once."""
    async with opened() as ingress:
        for number in (1, 2):
            connection = await ingress.connect("r1")
            connection.send([OrderAccepted("q", number)])
            connection.close()
            await ingress.connected()
        assert ingress.taken == [("r1", OrderAccepted("q", 1)), ("r1", OrderAccepted("q", 2))]
    assert ingress.lost == ["r1", "r1"]


async def test_silence_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards invariant 8: a machine that is gone closes no connection."""
    monkeypatch.setattr(back_channel, "SILENCE_S_MAX", 0.01)
    async with opened() as ingress:
        connection = await IngressConnection.connect(ingress.address, "r1", unasked)
        ingress.ends.callback(connection.close)
        await until(lambda: not connection.is_open)
        await until(lambda: bool(ingress.lost))
        assert ingress.lost == ["r1"]


async def test_whoever_says_no_hello_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(back_channel, "HELLO_S_MAX", 0.01)
    async with opened() as ingress:
        await ingress.refuse(b"")
        await ingress.refuse(ingress.hello()[:-1])
        assert (ingress.taken, ingress.lost, ingress.channel.replicas) == ([], [], [])


async def test_strangers_are_few_and_a_replica_still_gets_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the ingress: whoever reaches the port could open all the connections it may have."""
    monkeypatch.setattr(back_channel, "HELLO_S_MAX", 1000.0)
    monkeypatch.setattr(back_channel, "UNKNOWN_MAX", 3)
    async with opened() as ingress:
        await ingress.connect("r1")
        strangers = [await ingress.stranger() for _ in range(5)]
        for reader, _ in strangers[:2]:
            assert await reader.read() == b"", "the oldest are gone"
        await ingress.connect("r2")
        assert await strangers[2][0].read() == b""
        # Those that are left may still say who they are.
        strangers[4][1].write(ingress.hello("r3"))
        await ingress.connected("r1", "r2", "r3")
        assert ingress.lost == []


async def test_the_end_of_the_ingress_is_that_of_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(back_channel, "HELLO_S_MAX", 1000.0)
    monkeypatch.setattr(back_channel, "UNKNOWN_MAX", 1)
    async with opened() as ingress:
        first, second = [await ingress.stranger() for _ in "ab"]
        assert await first[0].read() == b"", "the second one was let in"
        await ingress.channel.close()
        assert await second[0].read() == b""


async def test_a_replica_knows_the_end_of_the_ingress() -> None:
    """Guards slots: requests of an ingress that is gone are cancelled."""
    async with opened() as ingress:
        connection = await ingress.connect("r1")
        assert connection.is_open
        await ingress.channel.close()
        await until(lambda: not connection.is_open)
        await ingress.connected()
        connection.send([OrderAccepted("q", 1)])
        assert (ingress.taken, ingress.lost) == ([], ["r1"])
        with pytest.raises(OSError):
            await IngressConnection.connect(ingress.address, "r1", unasked)


async def test_secrets_differ() -> None:
    async with opened() as one, opened() as other:
        assert one.address.secret != other.address.secret
        assert len(one.address.secret) >= 32


async def test_nobody_is_let_in_after_the_end() -> None:
    """Guards a closed fleet: a connection that was about to say its name is refused."""
    async with opened() as ingress:
        reader, writer = await ingress.stranger()
        await ingress.channel.close()
        writer.write(ingress.hello() + ACCEPTED)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert (ingress.taken, ingress.channel.replicas) == ([], [])


async def test_an_ingress_asks_each_replica_for_its_details() -> None:
    """Guards the way back: questions arrive one by one, and the end of an ingress is still seen."""
    asked: list[tuple[IngressConnection, int]] = []
    async with opened() as ingress:
        assert ingress.channel.ask(5) == []
        connections = [
            await IngressConnection.connect(
                ingress.address, name, lambda connection, count: asked.append((connection, count))
            )
            for name in ("a", "b")
        ]
        await ingress.connected("a", "b")
        assert sorted(ingress.channel.ask(240)) == sorted(ingress.channel.ask(0)) == ["a", "b"]
        await until(lambda: len(asked) == 4)
        for connection in connections:
            assert [count for each, count in asked if each is connection] == [240, 0]
            assert connection.is_open
        connections[0].close()
        await ingress.connected("b")
        assert ingress.channel.ask(1) == ["b"]
    await until(lambda: not connections[1].is_open)
    connections[1].close()


@pytest.mark.parametrize("has_limit", [True, False])
async def test_a_machine_that_is_lost_without_a_word_is_noticed_where_the_system_can(
    monkeypatch: pytest.MonkeyPatch, has_limit: bool
) -> None:
    """Guards slots: after a power loss no end of a connection is told. Not every system can."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if has_limit and option is None:
        pytest.skip("this system has no such limit")
    if not has_limit:
        monkeypatch.delattr(socket, "TCP_USER_TIMEOUT", raising=False)
    async with opened() as ingress:
        connection = await ingress.connect("r1")
        if option is not None:
            own_socket = connection._writer.get_extra_info("socket")
            limit_ms = own_socket.getsockopt(socket.IPPROTO_TCP, option)
            assert limit_ms == (back_channel.GONE_MS if has_limit else 0)
