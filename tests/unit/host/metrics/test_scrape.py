"""Exporters are scraped side by side: those that do not answer cost the others nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import host_stalls
import pytest
from builders import dead_exporters
from builders.dead_exporters import listening
from oracles import oracle
from testbed_agents.metrics import RankMetrics

from testbed.core.records.samples import SCRAPED, RankSample, read_metrics
from testbed.host.metrics.scrape import scrape_all

Address = tuple[str, int]


@pytest.fixture
def silent() -> Iterator[Address]:
    with dead_exporters.silent() as address:
        yield address


@pytest.fixture
def black_hole() -> Iterator[Address]:
    with dead_exporters.black_hole() as address:
        yield address


@pytest.fixture
def refusing() -> Address:
    return dead_exporters.refusing()


@pytest.fixture
def trickling() -> Iterator[Address]:
    """Answers without end, a byte at a time."""
    over = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=drip, args=(connection,), daemon=True).start()

    def drip(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            while not over.wait(0.02):
                connection.sendall(b"#")

    with listening() as server:
        threading.Thread(target=trickle, daemon=True).start()
        yield server.getsockname()
        over.set()


@pytest.fixture(scope="module")
def rank() -> tuple[Address, RankMetrics]:
    """A real exporter that has done three steps."""
    with listening() as server:
        address: Address = server.getsockname()
    metrics = RankMetrics(site="east", node="east-0", rank=0, torch_version="2.13.0")
    metrics.serve(*address)
    for step in range(1, 4):
        metrics.step_done(step=step, train_loss=2.5, tokens=256, compute_s=0.25, peer_wait_s=0.03125, network_s=0.0625)
    return address, metrics


def answers(*lines: bytes) -> Iterator[Address]:
    """An exporter that says these bytes and closes the connection."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"".join(lines))

    with listening() as server:
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()


NAMES = frozenset(name for name, _ in SCRAPED.values())


def test_the_metrics_of_a_rank(rank: tuple[Address, RankMetrics]) -> None:
    (found,) = scrape_all({0: rank[0]}, 5.0, NAMES).values()
    assert found.why == ""
    assert {name.partition("{")[0] for name in found.values} == NAMES
    sample = RankSample.from_series(found.t, 0, found.values)
    assert (sample.steps, sample.tokens, sample.compute_s) == (3, 768, 0.75)
    assert (sample.peer_wait_s, sample.network_s, sample.exposed_s) == (0.09375, 0.1875, 0.28125)
    assert sample.cpu_s == pytest.approx(time.process_time(), abs=1.0)
    status = Path("/proc/self/status").read_text().splitlines()
    resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    assert sample.memory_bytes == pytest.approx(1024 * resident, rel=0.05)


def test_without_names_everything_is_kept(rank: tuple[Address, RankMetrics]) -> None:
    (found,) = scrape_all({0: rank[0]}, 5.0).values()
    assert found.values['testbed_train_loss{node="east-0",rank="0",site="east"}'] == 2.5
    assert {name.partition("{")[0] for name in found.values} > NAMES


def test_64_that_do_not_answer_cost_one_bound_and_nobody_else_an_answer(
    silent: Address, black_hole: Address, refusing: Address, trickling: Address, rank: tuple[Address, RankMetrics]
) -> None:
    dead = {"silent": silent, "black hole": black_hole, "trickling": trickling}
    targets = {(name, number): address for number in range(64) for name, address in dead.items()}
    targets |= {("refusing", number): refusing for number in range(64)}
    targets |= {("rank", number): rank[0] for number in range(4)}
    began = time.monotonic()
    found = scrape_all(targets, 1.0, NAMES)
    ended = time.monotonic()
    assert set(found) == set(targets)
    why: dict[str, set[str]] = {}
    for (name, _), it in found.items():
        why.setdefault(name, set()).add(it.why)
    assert why == {
        "silent": {"timeout"},
        "black hole": {"timeout"},
        "trickling": {"timeout"},
        "refusing": {"refused"},
        "rank": {""},
    }
    assert ended - began >= 1.0 and host_stalls.elapsed_s(began, ended) < 2.0
    tokens = 'testbed_tokens_total{node="east-0",rank="0",site="east"}'
    assert [found["rank", number].values[tokens] for number in range(4)] == [768.0] * 4


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\ntestbed_steps_total 1\n",
        b"HTTP/1.0 500 no\r\n\r\ntestbed_steps_total 1\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 30\r\n\r\ntestbed_steps_total 1\n",  # it ended in the middle
        b"HTTP/1.0 200 OK\r\n\r\ntestbed_steps_total{ 1\n",
        b"HTTP/1.0 200 OK\r\n\r\ntestbed_steps_total many\n",
        b"HTTP/1.0 200 OK\r\n\r\n" + b"# a comment\n" * 200_000,
    ],
)
def test_what_is_no_answer_is_malformed(answer: bytes) -> None:
    for address in answers(answer):
        (found,) = scrape_all({0: address}, 5.0, NAMES).values()
        assert found.why in ("malformed", "Connection reset by peer")
        assert not found.values


def test_nobody_to_ask() -> None:
    assert scrape_all({}, 1.0) == {}


def test_no_descriptor_is_left_open(silent: Address, refusing: Address, rank: tuple[Address, RankMetrics]) -> None:
    targets = {0: silent, 1: refusing, 2: rank[0]}
    scrape_all(targets, 0.05, NAMES)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        scrape_all(targets, 0.05, NAMES)
    # The exporter's own connections are in this process too, and may be about to close.
    oracle.until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before, 5.0, "no descriptor is left open")


# ---- what of it is stored

LONGEST = RankSample(
    t=12_345_678.123456,
    rank=999,
    steps=9_999_999,
    tokens=999_999_999_999,
    compute_s=1_234_567.123456,
    peer_wait_s=1_234_567.123456,
    network_s=1_234_567.123456,
    cpu_s=1_234_567.123456,
    memory_bytes=999_999_999_999,
)
"""After 140 days of uptime and two weeks of training, in a terabyte."""


def test_a_rank_and_second_takes_at_most_200_bytes(rank: tuple[Address, RankMetrics]) -> None:
    (found,) = scrape_all({0: rank[0]}, 5.0, NAMES).values()
    for sample in (RankSample.from_series(found.t, 0, found.values), LONGEST, RankSample(1.0, 0, why="timeout")):
        line = json.dumps(sample.to_dict(), separators=(",", ":")) + "\n"
        assert len(line) <= 200, line
        metrics, malformed = read_metrics([json.loads(line)])
        (read,) = metrics.ranks
        assert malformed == 0
        assert read.t == pytest.approx(sample.t, abs=0.001)
        assert (read.rank, read.steps, read.tokens, read.memory_bytes, read.why) == (
            sample.rank,
            sample.steps,
            sample.tokens,
            sample.memory_bytes,
            sample.why,
        )
        for name in ("compute_s", "peer_wait_s", "network_s", "cpu_s"):
            if (value := getattr(sample, name)) is not None:
                assert getattr(read, name) == pytest.approx(value, abs=0.001, rel=1e-8)
