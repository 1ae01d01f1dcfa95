"""Rank programs as processes on the loopback interface, and their expected answers, computed independently."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).parents[2]
PYTHON_PATH = f"{REPOSITORY}:{REPOSITORY / 'agents'}"
ANSWER_S = 60.0  # a limit only: an import of torch takes seconds on a busy machine

Answer = dict[str, Any]


class RankProcess:
    """A rank program as a process."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], log: Path, popen: Any = subprocess.Popen
    ) -> None:
        self._log = log
        with log.open("ab") as errors:
            self.process = popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"PYTHONPATH": PYTHON_PATH} | dict(environment),
                text=True,
            )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._answers.put(line)

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self, within_s: float = ANSWER_S) -> Answer:
        try:
            answer: Answer = json.loads(self._answers.get(timeout=within_s))
        except queue.Empty:
            raise TimeoutError(f"no answer; its log: {self._log.read_text()[-2000:]}") from None
        return answer

    def end_of_input(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Ranks:
    """All ranks of a world, each on its own address from 127.0.0.2. ``popen``: what starts a program."""

    def __init__(self, program: Sequence[str], size: int, folder: Path, popen: Any = subprocess.Popen) -> None:
        self._argv, self._popen = [sys.executable, *program], popen
        self.size, self.folder = size, folder
        self.addresses = [f"127.0.0.{rank + 2}" for rank in range(size)]
        self.attempt = self.port = 0
        self._calls = 0
        self.ranks = [self._start(rank) for rank in range(size)]

    def _start(self, rank: int) -> RankProcess:
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": self.addresses[0],
            "MASTER_PORT": "29500",
            "TESTBED_SITE": "east",
            "TESTBED_NODE": f"east-{rank}",
            "TESTBED_INTERFACE": "lo",
            "TESTBED_ADDRESSES": ",".join(self.addresses),
            "TESTBED_SITES": ",".join(["east"] * self.size),
            "TESTBED_FOLDER": str(self.folder),
            "OMP_NUM_THREADS": "1",
        }
        return RankProcess(self._argv, environment, self.folder / f"rank-{rank}.log", self._popen)

    def restart(self, rank: int) -> None:
        self.ranks[rank].close()
        self.ranks[rank] = self._start(rank)

    def ask(
        self, operation: Mapping[str, Any], ranks: Sequence[int] | None = None, within_s: float = ANSWER_S
    ) -> list[Answer]:
        """Run one operation on ``ranks`` (default: all) and return their answers."""
        asked = [self.ranks[rank] for rank in (range(self.size) if ranks is None else ranks)]
        for rank in asked:
            rank.tell(json.dumps(operation))
        return [rank.hear(within_s) for rank in asked]

    def join(self, timeout_s: float = 20.0) -> list[Answer]:
        self.attempt += 1
        self.port = free_port(self.addresses)
        return self.ask({"do": "join", "attempt": self.attempt, "port": self.port, "timeout_s": timeout_s})

    def call(self, do: str, ranks: Sequence[int] | None = None, **more: Any) -> tuple[int, list[Answer]]:
        self._calls += 1
        operation = {"do": do, "call": self._calls, "group": "world", "type": "float32", "count": 0, "reduction": "sum"}
        operation |= {"root": 0, "seed": 5, "keep": True} | more
        return self._calls, self.ask(operation, ranks)

    def output(self, answer: Answer) -> bytes:
        return (self.folder / answer["output"]).read_bytes()

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()


@contextlib.contextmanager
def started(program: Sequence[str], size: int, folder: Path, popen: Any = subprocess.Popen) -> Iterator[Ranks]:
    ranks = Ranks(program, size, folder, popen)
    try:
        yield ranks
    finally:
        ranks.close()


def expected(
    do: str,
    rank: int,
    call: int,
    element_type: str,
    count: int,
    size: int,
    reduction: str = "sum",
    root: int = 0,
    to: int = 1,
) -> Any:
    """Return the expected output of ``rank``; None for no output."""
    blocks = size if do in ("reduce_scatter", "all_to_all") else 1
    inputs = [vector(element_type, blocks * count, other, call) for other in range(size)]
    mine = slice(rank * count, (rank + 1) * count)
    match do:
        case "all_reduce":
            return reduced(inputs, reduction)
        case "reduce":
            return reduced(inputs, reduction) if rank == root else None
        case "reduce_scatter":
            return reduced(inputs, reduction)[mine]
        case "all_gather":
            return np.concatenate(inputs)
        case "broadcast":
            return inputs[root]
        case "all_to_all":
            return np.concatenate([other[mine] for other in inputs])
        case "send":
            return inputs[root] if rank == to else None
    raise AssertionError(do)


def free_port(addresses: Sequence[str]) -> int:
    """Return a port that is free on every address: all ranks of the ring listen on the same port."""
    while True:
        with contextlib.ExitStack() as sockets:
            port = 0
            try:
                for address in addresses:
                    server = sockets.enter_context(socket.socket())
                    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    server.bind((address, port))
                    port = server.getsockname()[1]
            except OSError:
                continue
            return port


def element(element_type: str, index: int, rank: int, call: int, seed: int) -> float:
    """Return an input element as defined in docs/validate.md, in Python's integers and binary fractions."""
    z = seed * 0x9E3779B97F4A7C15 + call * 0xD1B54A32D192ED03 + rank * 0xA0761D6478BD642F + index * 0xE7037ED1A0B428DB
    z %= 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    w = z ^ (z >> 31)
    match element_type:
        case "int32":
            return (w >> 44) - 2**19
        case "int64":
            return (w >> 24) - 2**39
        case "float16":
            return (w >> 53) / 2**10 - 1
        case "bfloat16":
            return (w >> 56) / 2**7 - 1
        case "float32":
            return (w >> 40) / 2**23 - 1
        case "float64":
            return (w >> 11) / 2**52 - 1
    raise AssertionError(element_type)


def vector(element_type: str, count: int, rank: int, call: int, seed: int = 5) -> Any:
    kind = np.int64 if element_type.startswith("int") else np.float64
    return np.array([element(element_type, index, rank, call, seed) for index in range(count)], kind)


def decoded(element_type: str, raw: bytes) -> Any:
    """Return an output as int64 or float64."""
    if element_type == "bfloat16":
        return np.frombuffer(raw, "<u2").astype("<u4").__lshift__(16).view("<f4").astype(np.float64)
    numbers = np.frombuffer(raw, np.dtype(element_type).newbyteorder("<"))
    return numbers.astype(np.int64 if element_type.startswith("int") else np.float64)


FLOATS_AND_INTEGERS = ("int32", "int64", "float16", "bfloat16", "float32", "float64")

PRECISION = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Half the distance from 1 to the next number: the largest relative error of an addition."""


def reduced(vectors: Sequence[Any], reduction: str) -> Any:
    if reduction == "max":
        return np.max(vectors, axis=0)
    total = np.sum(vectors, axis=0)
    return total / len(vectors) if reduction == "avg" else total


def slack(element_type: str, size: int) -> float:
    """Return the largest error of a sum of ``size`` numbers in [-1, 1): ``size`` roundings of sums up to ``size``."""
    return 0.0 if element_type.startswith("int") else size * size * PRECISION[element_type]
