"""What the keeper pushes over a real socket: a follower has what a poller would have, sooner, with less traffic."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.followed_keeper import FollowedApi, Keeper
from oracles import oracle

from testbed.errors import LabError
from testbed.keeper import client, protocol
from testbed.keeper.subscription import Subscription

WAIT_S = 10.0


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    keeper = Keeper(tmp_path)
    yield keeper
    keeper.end()


@pytest.fixture
def followed(keeper: Keeper) -> Iterator[Subscription]:
    with Subscription(keeper.lab) as followed:
        followed.state()
        yield followed


@contextlib.contextmanager
def connected(keeper: Keeper) -> Iterator[Any]:
    """A connection on which requests are written, and messages read, line by line."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(str(keeper.lab.socket))
        yield connection.makefile("rwb", buffering=0)


def wait_for_failure(followed: Subscription, match: str) -> None:
    with pytest.raises(LabError, match=match):
        while True:
            followed.wait(WAIT_S)


def test_a_follower_has_each_change_at_once(keeper: Keeper) -> None:
    events: list[Any] = []
    with Subscription(keeper.lab, events.extend) as followed:
        state = followed.state()
        assert [rank["rank"] for rank in state.ranks] == list(range(64))
        assert {rank["state"] for rank in state.ranks} == {"waiting"}
        delays_s = []
        for rank in range(20):
            began_t = time.monotonic()
            keeper.set(rank, "training")
            while followed.wait(WAIT_S).ranks[rank]["state"] != "training":
                pass
            delays_s.append(time.monotonic() - began_t)
        assert sorted(delays_s)[10] < protocol.HEARTBEAT_S / 2, "not by a heartbeat"
        keeper.dark, keeper.dead = ["north"], ["east-0"]
        keeper.events.add("carrier", link="north")
        oracle.until(lambda: followed.state().dark == ("north",), WAIT_S, "the carrier")
        assert followed.state().dead_containers == ("east-0",)
        assert [event["event"] for event in events] == ["carrier"]


def test_no_event_is_lost_or_repeated(keeper: Keeper) -> None:
    for number in range(100):
        keeper.events.add("note", number=number)
    events: list[Any] = []
    with Subscription(keeper.lab, events.extend, since=40) as followed:
        for number in range(100, 2000):
            keeper.events.add("note", number=number)
        followed.state(after_t=time.monotonic())
        assert [event["number"] for event in events] == list(range(40, 2000))
    with Subscription(keeper.lab, events.extend) as later:
        later.state(after_t=time.monotonic())
        assert len(events) == 1960, "only those of the future"


def test_what_is_confirmed_has_been_received(keeper: Keeper) -> None:
    """``t`` of an update is not later than the look at the events."""
    times: list[float] = []
    stop = threading.Event()

    def add() -> None:
        while not stop.wait(0.0005):
            keeper.events.add("note")

    adder = threading.Thread(target=add)
    with Subscription(keeper.lab, lambda events: times.extend(event["t"] for event in events)) as followed:
        followed.state()
        adder.start()
        for _ in range(50):
            confirmed_t = followed.wait(WAIT_S).t
            count = len(times)
            time.sleep(0.005)
            assert not [t for t in times[count:] if t < confirmed_t]
        stop.set()
        adder.join()


def test_a_quiet_lab_costs_a_heartbeat_and_without_a_follower_nothing(keeper: Keeper) -> None:
    before = keeper.looked
    time.sleep(3 * protocol.HEARTBEAT_S)
    assert keeper.looked == before, "nobody follows"
    with Subscription(keeper.lab) as first, Subscription(keeper.lab) as second:
        first.state(), second.state()
        began_t, before = time.monotonic(), keeper.looked
        oracle.until(lambda: keeper.looked >= before + 4, WAIT_S, "it beats")
        assert time.monotonic() - began_t > 3 * protocol.HEARTBEAT_S, "not more often, and for both at once"
        t = first.complete_until
        oracle.until(lambda: first.complete_until > t, WAIT_S, "each beat confirms")
    oracle.until(lambda: not keeper.subscribers, WAIT_S, "both are gone")
    before = keeper.looked
    time.sleep(3.5 * protocol.HEARTBEAT_S)
    assert keeper.looked <= before + 1, "nobody follows any longer, and one look may have been under way"


def test_an_update_holds_only_what_changed(keeper: Keeper) -> None:
    with connected(keeper) as stream:
        stream.write(b'{"call": "subscribe"}\n')
        messages = [json.loads(stream.readline()) for _ in range(2)]
        assert {"ok": None} in messages
        (first,) = [message["update"] for message in messages if "update" in message]
        assert len(first["ranks"]) == 64
        assert (first["dark"], first["dead_containers"]) == ([], [])
        keeper.set(7, "gone")
        while "ranks" not in (update := json.loads(stream.readline())["update"]):
            assert set(update) == {"t", "events"}
        assert update["ranks"] == [{"rank": 7, "state": "gone"}]
        assert set(update) == {"t", "events", "ranks"}


def test_a_keeper_that_ends_ends_its_followers(keeper: Keeper, followed: Subscription) -> None:
    keeper.hang_up()
    wait_for_failure(followed, "ended while it handled 'subscribe'")
    assert "ended" in followed.failure


def test_a_follower_that_fails_ends_the_subscription(keeper: Keeper) -> None:
    def full(events: Any) -> None:
        raise LabError("the disk is full")

    with Subscription(keeper.lab, full) as followed:
        followed.state()
        keeper.events.add("note")
        wait_for_failure(followed, "the disk is full")


def test_a_keeper_of_an_older_version_is_named(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers what it supports; a command that must follow it reports why it cannot."""
    monkeypatch.delattr(FollowedApi, "subscribe")
    with Subscription(keeper.lab) as followed:
        wait_for_failure(followed, "unknown verb 'subscribe': the lab's keeper runs")
    assert len(client.keeper(keeper.lab).ranks()) == 64


def test_a_command_may_poll_while_another_is_subscribed(keeper: Keeper, followed: Subscription) -> None:
    keeper.events.add("note", text="x")
    with connected(keeper) as stream:
        for verb, count in (("events", 1), ("ranks", 64)):
            stream.write(b'{"call": "%s"}\n' % verb.encode())
            answer = json.loads(stream.readline())["ok"]
            assert len(answer["events"] if verb == "events" else answer) == count
