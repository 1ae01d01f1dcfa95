"""What the keeper pushes, over a real socket: a follower knows what a poller would, sooner, and with less ado."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.followed_keeper import Keeper
from oracles import oracle

from testbed.errors import LabError
from testbed.keeper import client, protocol
from testbed.keeper.subscription import Subscription

WAIT_S = 10.0


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(tmp_path)
    yield made
    made.end()


def test_a_follower_learns_of_each_change_at_once(keeper: Keeper) -> None:
    heard: list[Any] = []
    with Subscription(keeper.lab, heard.extend) as followed:
        state = followed.state()
        assert [it["rank"] for it in state.ranks] == list(range(64))
        assert {it["state"] for it in state.ranks} == {"waiting"}
        took = []
        for rank in range(20):
            began = time.monotonic()
            keeper.set(rank, "training")
            while (state := followed.wait(WAIT_S)).ranks[rank]["state"] != "training":
                pass
            took.append(time.monotonic() - began)
        assert sorted(took)[10] < protocol.HEARTBEAT_S / 2, "not by a heartbeat"
        keeper.dark, keeper.dead = ["north"], ["east-0"]
        keeper.events.add("carrier", link="north")
        oracle.until(lambda: followed.state().dark == ("north",), WAIT_S, "the carrier")
        assert followed.state().dead_containers == ("east-0",)
        assert [it["event"] for it in heard] == ["carrier"]


def test_no_event_is_lost_or_heard_twice(keeper: Keeper) -> None:
    for number in range(100):
        keeper.events.add("note", number=number)
    heard: list[Any] = []
    with Subscription(keeper.lab, heard.extend, since=40) as followed:
        for number in range(100, 2000):
            keeper.events.add("note", number=number)
        followed.state(after_t=time.monotonic())
        assert [it["number"] for it in heard] == list(range(40, 2000))
    with Subscription(keeper.lab, heard.extend) as later:
        later.state(after_t=time.monotonic())
        assert len(heard) == 1960, "only those of the future"


def test_what_is_confirmed_has_been_heard(keeper: Keeper) -> None:
    """``t`` of an update is not later than the look at the events."""
    heard: list[float] = []
    stop = threading.Event()

    def speak() -> None:
        while not stop.wait(0.0005):
            keeper.events.add("note")

    speaker = threading.Thread(target=speak)
    with Subscription(keeper.lab, lambda events: heard.extend(it["t"] for it in events)) as followed:
        followed.state()
        speaker.start()
        for _ in range(50):
            known_t = followed.wait(WAIT_S).t
            count = len(heard)
            time.sleep(0.005)
            assert not [t for t in heard[count:] if t < known_t]
        stop.set()
        speaker.join()


def test_a_quiet_lab_costs_a_heartbeat_and_without_a_follower_nothing(keeper: Keeper) -> None:
    before = keeper.looked
    time.sleep(3 * protocol.HEARTBEAT_S)
    assert keeper.looked == before, "nobody listens"
    with Subscription(keeper.lab) as one, Subscription(keeper.lab) as other:
        one.state(), other.state()
        began, before = time.monotonic(), keeper.looked
        oracle.until(lambda: keeper.looked >= before + 4, WAIT_S, "it beats")
        assert time.monotonic() - began > 3 * protocol.HEARTBEAT_S, "not more often, and for both at once"
        t = one.complete_until
        oracle.until(lambda: one.complete_until > t, WAIT_S, "each beat confirms")
    oracle.until(lambda: not keeper.publisher._subscribers, WAIT_S, "both are gone")


def test_an_update_holds_only_what_changed(keeper: Keeper) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(str(keeper.lab.socket))
        connection.sendall(b'{"call": "subscribe"}\n')
        stream = connection.makefile("rb")
        said = [json.loads(stream.readline()) for _ in range(2)]
        assert {"ok": None} in said
        (first,) = [it["update"] for it in said if "update" in it]
        assert len(first["ranks"]) == 64
        assert (first["dark"], first["dead_containers"]) == ([], [])
        keeper.set(7, "gone")
        while "ranks" not in (update := json.loads(stream.readline())["update"]):
            assert set(update) == {"t", "events"}
        assert update["ranks"] == [{"rank": 7, "state": "gone"}]
        assert set(update) == {"t", "events", "ranks"}


def test_a_keeper_that_ends_ends_its_followers(keeper: Keeper) -> None:
    with Subscription(keeper.lab) as followed:
        followed.state()
        keeper.hang_up()
        with pytest.raises(LabError, match="ended while it handled 'subscribe'"):
            while True:
                followed.wait(WAIT_S)
        assert "ended" in followed.failure


def test_what_the_follower_cannot_take_ends_the_subscription(keeper: Keeper) -> None:
    def full(events: Any) -> None:
        raise LabError("the disk is full")

    with Subscription(keeper.lab, full) as followed:
        followed.state()
        keeper.events.add("note")
        with pytest.raises(LabError, match="the disk is full"):
            while True:
                followed.wait(WAIT_S)


def test_a_keeper_of_an_older_version_is_named(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers what it knows; a command that must follow it says why it cannot."""
    older = {verb: kind for verb, kind in protocol._BY_VERB.items() if verb != "subscribe"}
    monkeypatch.setattr(protocol, "_BY_VERB", older)
    with (
        Subscription(keeper.lab) as followed,
        pytest.raises(LabError, match="unknown verb 'subscribe': the lab's keeper runs"),
    ):
        followed.state()
    assert len(client.ask(keeper.lab, protocol.Ranks())) == 64


def test_a_command_of_an_older_version_still_polls(keeper: Keeper) -> None:
    """Line by line what release 0.1.0 sends to follow a job, while another command is subscribed."""
    keeper.events.add("note", text="x")
    with Subscription(keeper.lab) as followed, socket.socket(socket.AF_UNIX) as connection:
        followed.state()
        connection.settimeout(WAIT_S)
        connection.connect(str(keeper.lab.socket))
        stream = connection.makefile("rwb")
        for line, key in ((b'{"call": "events"}\n', "events"), (b'{"call": "ranks"}\n', None)):
            stream.write(line)
            stream.flush()
            answer = json.loads(stream.readline())["ok"]
            assert len(answer["events"]) == 1 if key else len(answer) == 64
