"""Exporters are scraped side by side: those that do not answer cost the others nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import host_stalls
import pytest
from builders import dead_exporters
from builders.dead_exporters import listening
from builders.processes import open_files
from builders.tables import table
from oracles import oracle
from testbed_agents.recording.metrics import RankMetrics

from testbed.core.records.samples import SCRAPED, RankSample, read_metrics
from testbed.host.metrics.scrape import Scraped, scrape_all

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


@contextlib.contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Serve each connection in a thread of its own."""

    def run(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            serve(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=run, args=(connection,), daemon=True).start()

    with listening() as server:
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()


@pytest.fixture
def trickling() -> Iterator[Address]:
    """Answers without end, a byte at a time."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        while not over.wait(0.02):
            connection.sendall(b"#")

    with serving(drip) as address:
        yield address
        over.set()


@pytest.fixture(scope="module")
def rank() -> Address:
    """A real exporter that has done three steps."""
    with listening() as server:
        address: Address = server.getsockname()
    metrics = RankMetrics(site="east", node="east-0", rank=0, torch_version="2.13.0")
    metrics.serve(*address)
    for step in range(1, 4):
        metrics.step_done(step=step, train_loss=2.5, tokens=256, compute_s=0.25, peer_wait_s=0.03125, network_s=0.0625)
    return address


NAMES = frozenset(name for name, _ in SCRAPED.values())


def scrape(rank: Address, *names: frozenset[str]) -> Scraped:
    (scraped,) = scrape_all({0: rank}, 5.0, *names).values()
    return scraped


def test_the_metrics_of_a_rank(rank: Address) -> None:
    scraped = scrape(rank, NAMES)
    assert scraped.why == ""
    assert {name.partition("{")[0] for name in scraped.values} == NAMES
    sample = RankSample.from_series(scraped.t, 0, scraped.values)
    assert (sample.steps, sample.tokens, sample.compute_s) == (3, 768, 0.75)
    assert (sample.peer_wait_s, sample.network_s, sample.exposed_s) == (0.09375, 0.1875, 0.28125)
    assert sample.cpu_s == pytest.approx(time.process_time(), abs=1.0)
    status = Path("/proc/self/status").read_text().splitlines()
    resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    assert sample.memory_bytes == pytest.approx(1024 * resident, rel=0.05)


def test_without_names_everything_is_kept(rank: Address) -> None:
    scraped = scrape(rank)
    assert scraped.values['testbed_train_loss{node="east-0",rank="0",site="east"}'] == 2.5
    assert {name.partition("{")[0] for name in scraped.values} > NAMES


def test_64_that_do_not_answer_cost_one_bound_and_nobody_else_an_answer(
    silent: Address, black_hole: Address, refusing: Address, trickling: Address, rank: Address
) -> None:
    dead = {"silent": silent, "black hole": black_hole, "trickling": trickling}
    targets = {(name, number): address for number in range(64) for name, address in dead.items()}
    targets |= {("refusing", number): refusing for number in range(64)}
    targets |= {("rank", number): rank for number in range(4)}
    began = time.monotonic()
    answers = scrape_all(targets, 1.0, NAMES)
    ended = time.monotonic()
    assert set(answers) == set(targets)
    why = defaultdict(set)
    for (name, _), scraped in answers.items():
        why[name].add(scraped.why)
    assert why == {
        "silent": {"timeout"},
        "black hole": {"timeout"},
        "trickling": {"timeout"},
        "refusing": {"refused"},
        "rank": {""},
    }
    assert ended - began >= 1.0 and host_stalls.elapsed_s(began, ended) < 2.0
    tokens = 'testbed_tokens_total{node="east-0",rank="0",site="east"}'
    assert [answers["rank", number].values[tokens] for number in range(4)] == [768.0] * 4


OK = b"HTTP/1.0 200 OK\r\n"


@table(
    "answer",
    {
        "nothing": b"",
        "another protocol": b"nonsense\r\n\r\ntestbed_steps_total 1\n",
        "an error": b"HTTP/1.0 500 no\r\n\r\ntestbed_steps_total 1\n",
        "an end in the middle": OK + b"Content-Length: 30\r\n\r\ntestbed_steps_total 1\n",
        "a torn label": OK + b"\r\ntestbed_steps_total{ 1\n",
        "a word for a number": OK + b"\r\ntestbed_steps_total many\n",
        "a long one": OK + b"\r\n" + b"# a comment\n" * 200_000,
    },
)
def test_what_is_no_answer_is_malformed(answer: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(answer)

    with serving(serve) as address:
        (scraped,) = scrape_all({0: address}, 5.0, NAMES).values()
    assert scraped.why in ("malformed", "Connection reset by peer")
    assert not scraped.values


def test_nobody_to_ask() -> None:
    assert scrape_all({}, 1.0) == {}


def test_no_descriptor_is_left_open(silent: Address, refusing: Address, rank: Address) -> None:
    targets = {0: silent, 1: refusing, 2: rank}
    scrape_all(targets, 0.05, NAMES)
    before = len(open_files())
    for _ in range(10):
        scrape_all(targets, 0.05, NAMES)
    # The exporter's own connections are in this process too, and may be about to close.
    oracle.until(lambda: len(open_files()) <= before, 5.0, "no descriptor is left open")


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


def test_a_rank_and_second_takes_at_most_200_bytes(rank: Address) -> None:
    scraped = scrape(rank, NAMES)
    for sample in (RankSample.from_series(scraped.t, 0, scraped.values), LONGEST, RankSample(1.0, 0, why="timeout")):
        line = json.dumps(sample.to_dict(), separators=(",", ":")) + "\n"
        assert len(line) <= 200, line
        metrics, malformed = read_metrics([json.loads(line)])
        (read,) = metrics.ranks
        assert malformed == 0
        assert read.t == pytest.approx(sample.t, abs=0.001)
        for name in ("rank", "steps", "tokens", "memory_bytes", "why"):
            assert getattr(read, name) == getattr(sample, name)
        for name in ("compute_s", "peer_wait_s", "network_s", "cpu_s"):
            if (value := getattr(sample, name)) is not None:
                assert getattr(read, name) == pytest.approx(value, abs=0.001, rel=1e-8)
