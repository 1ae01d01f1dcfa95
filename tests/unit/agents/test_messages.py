"""Messages arrive once and in order, however often and wherever a connection breaks; nobody else's arrive."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from oracles import oracle
from testbed_agents.parameter_server import messages
from testbed_agents.parameter_server.messages import (
    TOKEN_BYTES,
    Channel,
    Connector,
    Header,
    Listener,
    MessageError,
    _Frame,
)

Served = tuple[Listener, Channel, list[Header]]
TOKEN = bytes(range(TOKEN_BYTES))
GREETING = _Frame(messages._GREETING, 0, b'{"channel": "x"}')
MESSAGE = _Frame(messages._MESSAGE, 1, b'{"n": 1}')
BOUND_S = 30.0


def eventually(found: Callable[..., bool]) -> None:
    oracle.until(found, BOUND_S, "what is awaited")


def copy_bytes(source: socket.socket, target: socket.socket, count: int) -> None:
    """Pass ``count`` bytes on, then end both connections: a break in the middle of whatever is on its way."""
    try:
        while count > 0 and (data := source.recv(min(count, 700))):
            target.sendall(data)
            count -= len(data)
    except OSError:
        pass
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def connect(a: Channel, b: Channel, budget: int, other_budget: int) -> list[threading.Thread]:
    """Connect two channels by a relay that breaks after some bytes in either direction."""
    one, relay_one = socket.socketpair()
    other, relay_other = socket.socketpair()

    def connect_out() -> None:
        with one, contextlib.suppress(OSError, MessageError):
            a.run_connected(one)

    def answer() -> None:
        with other:
            try:
                other.settimeout(5)
                b.run_accepted(other, _Frame.read(other, TOKEN, 0))
            except (OSError, MessageError):
                pass

    threads = [
        threading.Thread(target=connect_out, daemon=True),
        threading.Thread(target=answer, daemon=True),
        threading.Thread(target=copy_bytes, args=(relay_one, relay_other, budget), daemon=True),
        threading.Thread(target=copy_bytes, args=(relay_other, relay_one, other_budget), daemon=True),
    ]
    for each in threads:
        each.start()
    return threads


def keep(headers: list[Header]) -> Callable[[Header, torch.Tensor], None]:
    return lambda header, payload: headers.append(header)


def connected(incoming: Listener, take: Callable[[Header, torch.Tensor], None]) -> Channel:
    """Return a channel that connects to the one of ``incoming``."""
    client = Channel("x", TOKEN, 4096, take)
    Connector(client, "127.0.0.1", ("127.0.0.1", incoming.port))
    return client


def numbered(into: list[tuple[int, int]]) -> Callable[[Header, torch.Tensor], None]:
    return lambda header, payload: into.append((header["number"], int(payload.view(torch.int32).sum())))


@pytest.mark.parametrize("seed", range(4))
def test_each_parcel_arrives_once_and_in_order_whenever_connections_break(seed: int) -> None:
    drawn = random.Random(seed)
    at_a: list[tuple[int, int]] = []
    at_b: list[tuple[int, int]] = []
    a = Channel("x", TOKEN, 1 << 16, numbered(at_a))
    b = Channel("x", TOKEN, 1 << 16, numbered(at_b))
    sent: dict[Channel, list[tuple[int, int]]] = {a: [], b: []}
    breaks = 0
    for each in (a, b):
        for number in range(40):
            values = torch.full((drawn.randrange(1, 900),), number, dtype=torch.int32)
            sent[each].append((number, int(values.sum())))
            each.send({"number": number}, values)
    while a.undelivered or b.undelivered:
        threads = connect(a, b, drawn.randrange(20, 30_000), drawn.randrange(20, 30_000))
        eventually(
            lambda threads=threads: not any(it.is_alive() for it in threads) or not (a.undelivered or b.undelivered)
        )
        breaks += 1
        assert breaks < 1000
    a.close()
    b.close()
    assert at_b == sent[a] and at_a == sent[b]
    assert breaks > 3, "the connections must have broken, or nothing is shown"


@pytest.fixture
def served() -> Iterator[Served]:
    got: list[Header] = []
    incoming = Listener("127.0.0.1", TOKEN)
    channel = incoming.add(
        Channel("x", TOKEN, 4096, lambda header, payload: got.append({**header, "bytes": len(payload)}))
    )
    incoming.open()
    yield incoming, channel, got
    channel.close()
    incoming.close()


def test_a_connection_that_breaks_is_made_again(served: Served) -> None:
    incoming, server, got = served
    back: list[Header] = []
    client = connected(incoming, keep(back))
    client.send({"n": 1}, torch.zeros(10))
    eventually(lambda: got == [{"n": 1, "bytes": 40}])
    assert server.disconnected_s == 0
    with server._changed:
        server._drop()  # as when TCP gives up
    server.send({"n": 2})
    client.send({"n": 3})
    eventually(lambda: len(got) == 2 and back == [{"n": 2}])
    assert client.close(BOUND_S)


def test_of_two_connections_the_newer_one_is_used() -> None:
    """The peer has given the older one up, and a dark fiber keeps that to itself: it stays open here."""
    got: list[Header] = []
    channel = Channel("x", TOKEN, 4096, keep(got))
    peers: list[socket.socket] = []

    def answer(here: socket.socket) -> None:
        with here, contextlib.suppress(OSError):
            channel.run_accepted(here, _Frame.read(here, TOKEN, 0))

    with channel._serving:  # as while a message of the connection before is still being taken
        for _ in range(2):
            peer, here = socket.socketpair()
            peers.append(peer)
            _Frame(messages._GREETING, 0).write(peer, TOKEN)
            threading.Thread(target=answer, args=(here,), daemon=True).start()
            eventually(lambda here=here: channel._newest is here)
    older, newer = peers
    newer.settimeout(BOUND_S)
    assert _Frame.read(newer, TOKEN, 0).kind == messages._GREETING
    MESSAGE.write(newer, TOKEN)
    eventually(lambda: got == [{"n": 1}])
    channel.close()
    older.close()
    newer.close()


def test_the_end_waits_for_a_peer_that_is_connected_and_not_for_one_that_is_not(
    served: Served,
) -> None:
    incoming, server, _ = served
    began, may = threading.Event(), threading.Event()

    def take_slowly(header: Header, payload: torch.Tensor) -> None:
        began.set()
        assert may.wait(BOUND_S)

    connected(incoming, take_slowly)
    server.send({"n": 1})
    assert began.wait(BOUND_S)
    found: list[bool] = []
    closing = threading.Thread(target=lambda: found.append(server.close(0.05)), daemon=True)
    closing.start()
    closing.join(0.3)
    assert closing.is_alive(), "longer than the bound, which is not of a connection that is there"
    may.set()
    closing.join(BOUND_S)
    assert found == [True]
    dark = Channel("y", TOKEN, 4096, take_slowly)
    dark.send({"n": 1})
    assert not dark.close(0.05)


def test_the_last_parcel_arrives_although_its_connection_broke(served: Served) -> None:
    incoming, server, _ = served
    server.send({"n": "the end"})
    found: list[bool] = []
    closing = threading.Thread(target=lambda: found.append(server.close(BOUND_S)), daemon=True)
    closing.start()
    breaking = socket.create_connection(("127.0.0.1", incoming.port), 5)
    GREETING.write(breaking, TOKEN)
    _Frame.read(breaking, TOKEN, 0)
    assert _Frame.read(breaking, TOKEN, 0).number == 1  # it was sent, and this peer never says that it has it
    breaking.close()
    back: list[Header] = []
    client = connected(incoming, keep(back))
    closing.join(BOUND_S)
    assert found == [True] and back == [{"n": "the end"}]
    client.close()


def test_an_error_of_one_connection_does_not_end_the_listener() -> None:
    incoming = Listener("127.0.0.1", TOKEN)
    channel = incoming.add(Channel("x", TOKEN, 4096, keep([])))
    listener, errors = incoming._listener, [OSError(errno.EMFILE, "no room")]

    class Flaky:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            listener.close()

        def accept(self) -> object:
            if errors:
                raise errors.pop()
            return listener.accept()

    incoming._listener = Flaky()  # type: ignore[assignment]
    incoming.open()
    client = connected(incoming, keep([]))
    eventually(lambda: not channel.disconnected_s)
    for each in (client, channel):
        each.close()
    incoming.close()


def test_a_dialer_that_cannot_go_on_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(messages, "_tune", no_room)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Channel("x", TOKEN, 4096, keep([]))
        Connector(client, "127.0.0.1", listener.getsockname())
        eventually(lambda: client.closed)
    assert "new thread" in str(client.failure)


def test_nothing_of_an_unknown_peer_arrives(served: Served) -> None:
    incoming, server, got = served

    def say(*frames: _Frame, token: bytes = TOKEN) -> bytes:
        with socket.create_connection(("127.0.0.1", incoming.port), 5) as connection:
            connection.settimeout(5)
            try:
                for frame in frames:
                    frame.write(connection, token)
                while connection.recv(1000):
                    pass
            except ConnectionError:
                return b""
        return b""

    say(GREETING, MESSAGE, token=bytes(TOKEN_BYTES))  # another token
    say(_Frame(messages._GREETING, 0, b'{"channel": "y"}'))  # an unknown channel
    say(_Frame(messages._GREETING, 7, GREETING.header), MESSAGE)  # acknowledges what never was
    say(GREETING, _Frame(messages._MESSAGE, 2, b'{"n": 2}'))  # the first one is missing
    say(GREETING, _Frame(messages._MESSAGE, 1, b"{}", memoryview(bytes(5000))))  # larger than any tensor of the job
    say(GREETING, _Frame(9, 1))
    assert got == []
    say(GREETING, MESSAGE, MESSAGE, _Frame(9, 1))  # sent twice: taken once
    assert [it["n"] for it in got] == [1]
    assert server.failure is None


def test_a_parcel_that_cannot_be_used_ends_the_channel(served: Served) -> None:
    incoming, server, _ = served

    def refuse(header: Header, payload: torch.Tensor) -> None:
        raise ValueError("no such fragment")

    client = connected(incoming, refuse)
    server.send({"n": 1})
    eventually(lambda: client.closed)
    assert isinstance(client.failure, ValueError)
    with pytest.raises(ValueError, match="header of at most"):
        client.send({"n": "x" * (1 << 17)})
