"""The server: who counts in which round, with which weight, and that nobody counts twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles import oracle
from testbed_agents.exchange.codec import of_bits
from testbed_agents.hooks import Hooks
from testbed_agents.parameter_server.messages import Header
from testbed_agents.parameter_server.quorum_server import QuorumServer, merged

BOUND_S = 20.0
SITES = ("a", "b", "c")


class Desk:
    """A server of one slice with what it has sent to site a."""

    def __init__(self, quorum: int, grace_s: float, sizes: tuple[int, ...] = (4,), bits: int = 32) -> None:
        self.server = QuorumServer(SITES, True, Hooks(), sizes, of_bits(bits), quorum, grace_s)
        self.server.begin()
        self.sizes, self.codec = sizes, of_bits(bits)
        self.sent: list[tuple[Header, torch.Tensor | None]] = []
        self.server.deliver |= dict.fromkeys(SITES, lambda header, tensor: None)
        self.server.deliver["a"] = lambda header, tensor: self.sent.append((header, tensor))
        self.pushed = dict.fromkeys(SITES, 0)

    def push(self, site: str, value: float, tokens: int = 1, fragment: int = 0) -> None:
        self.pushed[site] += 1
        header = {"kind": "push", "fragment": fragment, "push": self.pushed[site], "tokens": tokens}
        values = torch.full((self.sizes[fragment],), value)
        self.server.receive(site, header, self.codec.encode(values))

    def say(self, site: str, kind: str) -> None:
        self.server.receive(site, {"kind": kind}, torch.empty(0))

    @property
    def rounds(self) -> list[tuple[float, dict[str, int]]]:
        """The mean of each round, and the pushes that it contains or has before."""
        return [
            (float(self.codec.decode(tensor, self.sizes[header["fragment"]])[0]), header["included"])
            for header, tensor in self.sent
            if header["kind"] == "merged" and tensor is not None
        ]


def eventually(found: Callable[[], Any]) -> None:
    oracle.until(found, BOUND_S, "what is awaited")


def test_all_there_need_no_grace_and_count_by_their_tokens() -> None:
    desk = Desk(quorum=2, grace_s=1000.0)
    desk.push("c", 6.0, tokens=1)
    desk.push("a", 1.0, tokens=3)
    assert desk.rounds == []
    desk.push("b", 2.0, tokens=2)
    assert desk.rounds == [(pytest.approx((6 + 3 + 4) / 6), {"a": 1, "b": 1, "c": 1})]


def test_a_latecomer_counts_in_the_next_round_and_never_twice() -> None:
    desk = Desk(quorum=2, grace_s=0.01)
    desk.push("a", 1.0)
    time.sleep(0.05)
    assert desk.rounds == [], "one is no quorum, however long"
    desk.push("b", 3.0)
    eventually(lambda: len(desk.rounds) == 1)
    assert desk.rounds[0] == (2.0, {"a": 1, "b": 1, "c": 0})
    desk.push("c", 10.0)
    time.sleep(0.05)
    assert len(desk.rounds) == 1
    desk.push("a", 4.0)
    eventually(lambda: len(desk.rounds) == 2)
    assert desk.rounds[1] == (7.0, {"a": 2, "b": 1, "c": 1})


def test_within_the_grace_time_others_still_count() -> None:
    desk = Desk(quorum=1, grace_s=0.3)
    desk.push("a", 1.0)
    desk.push("b", 3.0)
    assert desk.rounds == []
    eventually(lambda: len(desk.rounds) == 1)
    assert desk.rounds[0][0] == 2.0


def test_several_pushes_of_one_site_are_one_movement() -> None:
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    both = merged([[(1, 5, one), (2, 5, two)], [(1, 10, torch.tensor([7.0]))], []])
    assert float(both) == pytest.approx((3.0 * 10 + 7.0 * 10) / 20)


@pytest.mark.parametrize("seed", range(5))
def test_every_push_is_in_one_version_exactly_once_also_over_a_checkpoint(seed: int) -> None:
    drawn = random.Random(seed)
    desk = Desk(quorum=2, grace_s=0.0, sizes=(3, 5))
    expected = [dict.fromkeys(SITES, 0.0) for _ in desk.sizes]
    taken: list[dict[str, list[int]]] = [{site: [] for site in SITES} for _ in desk.sizes]
    pushes = {(fragment, site): [] for fragment in range(2) for site in SITES}  # type: ignore[var-annotated]

    def some(count: int) -> None:
        for _ in range(count):
            site, fragment = drawn.choice(SITES), drawn.randrange(2)
            desk.push(site, drawn.gauss(0, 1), drawn.randrange(1, 9), fragment)
            pushes[fragment, site].append(desk.pushed[site])
            expected[fragment][site] += 1

    def collect(server: QuorumServer) -> None:
        for entry in server.take_log():
            if entry.get("what") == "received":
                continue
            for site, numbers in entry["taken"].items():
                taken[entry["fragment"]][site] += numbers

    some(drawn.randrange(1, 30))
    for site in SITES:
        desk.say(site, "settled")
    assert desk.sent[-1][0]["kind"] == "settled"
    collect(desk.server)
    # Another process, restored from the tensors: what one site had delivered is one push there, its last.
    restored = Desk(quorum=2, grace_s=0.0, sizes=(3, 5))
    for name, tensor in desk.server.saved.items():
        restored.server.saved[name].copy_(tensor)
    waiting = {
        (fragment, site): [number for number, *_ in desk.server._waiting[fragment][site]]
        for fragment in range(2)
        for site in SITES
    }
    with desk.server.lock:
        for timer in desk.server._timers.values():
            timer.cancel()
    restored.pushed, desk = desk.pushed, restored
    desk.server.loaded()
    some(drawn.randrange(1, 30))
    for site in SITES:
        desk.say(site, "end")
    assert desk.sent[-1][0]["kind"] == "final"
    collect(desk.server)
    for key, numbers in pushes.items():
        fragment, site = key
        merged_away = waiting[key][:-1]
        assert sorted(taken[fragment][site] + merged_away) == numbers, key


def test_what_arrives_before_the_state_is_loaded_waits_for_it() -> None:
    server = QuorumServer(SITES, True, Hooks(), (4,), of_bits(32), 1, 0.0)
    server.deliver |= dict.fromkeys(SITES, lambda header, tensor: None)
    for site in SITES:
        push = {"kind": "push", "fragment": 0, "push": 6, "tokens": 1}
        server.receive(site, push, of_bits(32).encode(torch.ones(4)))
    server.saved["syncer.numbers"][0] = torch.tensor([5, 5, 5, 5, 0, 0, 0, 0, 0, 0])
    server.loaded()
    assert server.take_log() == []
    server.begin()
    served = [entry for entry in server.take_log() if entry.get("what") != "received"]
    assert [(entry["version"], entry["taken"]) for entry in served] == [(6, {site: [6] for site in SITES})]
