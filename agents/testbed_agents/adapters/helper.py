"""Turns an adapter into a rank program: it implements the protocol of docs/validate.md, the adapter calls the library.

    class Mine(Adapter):
        library, version = "mine", "1.0"
        offers = {"all_reduce": Offer(FLOATS, ("sum",)), "barrier": Offer()}
        def join(self, world): ...
        def all_reduce(self, call, given, room): ...
        def barrier(self, call): ...

    if __name__ == "__main__":
        main(Mine())

Standard output is reserved for the protocol: other output to it, also from C libraries, goes to standard error.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np

from testbed_agents.adapters.elements import FLOATS, INTEGERS, TYPES, Array, generate

__all__ = [
    "FLOATS",
    "INTEGERS",
    "TYPES",
    "Adapter",
    "Array",
    "Call",
    "Offer",
    "Unsupported",
    "World",
    "everything",
    "main",
]

Buffer = Any
"""What an adapter's ``place`` makes of an array: a numpy array, a tensor, an array on a device."""

WORLD = "world"
GRACE_S = 5.0
"""How long an operation may continue after the end of input; then the process ends."""

SPIN_S = 0.0005
"""Busy-waiting at the end of a wait for ``at``: a sleep ends some 0.1 ms late, more on a busy machine."""

POISON = 0xA5
"""Fill byte of an output that the library has not written yet. Filling before the clock starts also allocates the
pages, which would otherwise count as the library's time."""


class Unsupported(Exception):
    """The library does not support the operation, type or reduction."""


@dataclass(frozen=True)
class Offer:
    """What the library offers of an operation (docs/validate.md). ``same_bits``: all ranks are to get the same bits."""

    types: tuple[str, ...] = tuple(TYPES)
    reductions: tuple[str, ...] = ()
    same_bits: bool = False


def everything(
    reductions: tuple[str, ...] = ("sum", "max", "avg"),
    types: tuple[str, ...] = tuple(TYPES),
    *,
    same_bits: bool = False,
) -> dict[str, Offer]:
    """Return the offers of a library with all operations: any type is moved, ``types`` are reduced; ``same_bits`` is
    for all_reduce."""
    reduced = Offer(types, reductions)
    return {
        "all_reduce": Offer(types, reductions, same_bits),
        "reduce_scatter": reduced,
        "all_gather": Offer(),
        "broadcast": Offer(),
        "reduce": reduced,
        "all_to_all": Offer(),
        "send": Offer(),
        "barrier": Offer(),
    }


@dataclass(frozen=True)
class World:
    """What the ranks need to find each other. ``port`` is free on every rank's address; ``master`` is rank 0's."""

    rank: int
    size: int
    master: str
    port: int
    timeout_s: float
    attempt: int
    interface: str
    addresses: tuple[str, ...]
    sites: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """One operation. ``rank``, ``root`` and ``to`` are numbers in the group; ``ranks`` are its members in the world."""

    do: str
    number: int
    group: str
    ranks: tuple[int, ...]
    rank: int
    type: str
    count: int
    reduction: str
    root: int
    to: int
    seed: int
    at: float | None
    keep: bool

    @property
    def size(self) -> int:
        return len(self.ranks)


class Adapter:
    """One library. Implement a method for each operation of ``offers``.

    ``given`` is this rank's input and may be overwritten; ``room`` has the length of the output. Both are flat: numpy
    vectors, or what ``place`` makes of them. Return the one that holds the output, or None where this rank gets no
    output. An exception becomes the answer ``error``.
    """

    library = ""
    version = ""
    offers: Mapping[str, Offer] = {}
    groups = False
    """Whether ``group`` makes groups."""
    rebuilds = False
    """Whether ``join`` works again after an error."""

    def join(self, world: World) -> None:
        """Initialise, with the library's own timeout set to ``world.timeout_s``. Called again after an error."""
        raise NotImplementedError

    def group(self, name: str, ranks: tuple[int, ...]) -> None:
        """Make a group; called on all ranks, in the same order. ``call.group`` will name it."""
        raise Unsupported("the adapter does not support groups")

    def leave(self) -> None:
        """Shut down in order."""

    def prepare(self, call: Call) -> None:
        """Do what an application does once and not in each call, for example compile. Runs before the clock starts."""

    def place(self, call: Call, array: Array) -> Buffer:
        """Return the library's kind of buffer with this content; runs before the clock starts."""
        return array

    def fetch(self, call: Call, buffer: Buffer) -> Array:
        """Return a buffer's content in the type of the call (elements.TYPES); runs after the clock was read."""
        return cast(Array, buffer)

    def perform(self, call: Call, given: Buffer, room: Buffer) -> Buffer | None:
        """Call the method named after the operation; override to wrap all operations."""
        if call.do == "barrier":
            self.barrier(call)
            return None
        return getattr(self, call.do)(call, given, room)

    def all_reduce(self, call: Call, given: Buffer, room: Buffer) -> Buffer | None:
        """``count`` elements in, ``count`` out."""
        raise Unsupported(call.do)

    def reduce_scatter(self, call: Call, given: Buffer, room: Buffer) -> Buffer | None:
        """``size`` blocks in, one block out: the reduction of all ranks' block of this rank's number."""
        raise Unsupported(call.do)

    def all_gather(self, call: Call, given: Buffer, room: Buffer) -> Buffer | None:
        """A block in, ``size`` blocks out, in the order of the ranks."""
        raise Unsupported(call.do)

    def broadcast(self, call: Call, given: Buffer, room: Buffer) -> Buffer | None:
        """The root's ``given`` on all ranks, the root included; elsewhere ``given`` is empty."""
        raise Unsupported(call.do)

    def reduce(self, call: Call, given: Buffer, room: Buffer) -> Buffer | None:
        """As all_reduce, on the root alone."""
        raise Unsupported(call.do)

    def all_to_all(self, call: Call, given: Buffer, room: Buffer) -> Buffer | None:
        """``size`` blocks in, block k to rank k; ``size`` blocks out, block k from rank k."""
        raise Unsupported(call.do)

    def send(self, call: Call, given: Buffer, room: Buffer) -> Buffer | None:
        """``given`` from ``root`` to ``to``; not called on other ranks. ``given`` is empty on ``to``."""
        raise Unsupported(call.do)

    def barrier(self, call: Call) -> None:
        """Return only after all ranks have called."""
        raise Unsupported(call.do)


def main(adapter: Adapter) -> NoReturn:
    """Perform the operations until the input ends, then exit."""
    operations, answers = _lines()
    RankProgram(adapter, answers).run(operations)
    sys.stderr.flush()
    # A library's threads may be stuck after a failure; a normal exit would wait for them.
    os._exit(0)


def _lines() -> tuple[int, int]:
    """Return the descriptors of operations and answers."""
    if folder := os.environ.get("TESTBED_LINES"):
        fifo = Path(folder, os.environ["RANK"])
        operations = os.open(fifo.with_suffix(".operations"), os.O_RDONLY)  # same order on both sides, or a deadlock
        answers = os.open(fifo.with_suffix(".answers"), os.O_WRONLY)
    else:
        operations, answers = os.dup(0), os.dup(1)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
    os.dup2(2, 1)
    return operations, answers


class RankProgram:
    """One rank: reads operations, writes answers, performs them with ``adapter``."""

    def __init__(self, adapter: Adapter, answers: int, environment: Mapping[str, str] = os.environ) -> None:
        self._adapter, self._answers = adapter, answers
        self._rank, self._size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        self._folder = Path(environment["TESTBED_FOLDER"])
        self._environment = environment
        self._groups: dict[str, tuple[int, ...]] = {WORLD: tuple(range(self._size))}
        self._idle = threading.Event()

    def run(self, operations: int) -> None:
        """Answer each line of the descriptor ``operations`` until it ends, or until ``leave``."""
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(operations, lines), daemon=True).start()
        try:
            while (line := lines.get()) is not None:
                answer = self._answer_to(line)
                os.write(self._answers, json.dumps(answer).encode() + b"\n")
                if answer.get("do") == "leave":
                    break
        except BrokenPipeError:
            pass  # the validation has ended
        self._idle.set()

    def _read(self, operations: int, lines: queue.SimpleQueue[str | None]) -> None:
        with open(operations, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if line.strip():
                    lines.put(line)
        lines.put(None)
        # The process at the other end is gone. A library that hangs must not outlive it.
        if not self._idle.wait(GRACE_S):
            os._exit(1)

    def _answer_to(self, line: str) -> dict[str, Any]:
        try:
            operation = json.loads(line)
            do = operation["do"]
        except (ValueError, KeyError, TypeError):
            return {"error": f"expected an operation, got {line.strip()[:200]}", "ended": time.monotonic()}
        names = {key: operation[key] for key in ("attempt", "group", "call") if key in operation}
        if "call" in names:
            names.pop("group", None)
        else:
            names["do"] = do
        try:
            return names | self._obey(do, operation)
        except Unsupported as error:
            return names | {"unsupported": str(error), "ended": time.monotonic()}
        except Exception as error:  # a library may raise anything
            return names | {"error": _words(error), "ended": time.monotonic()}

    def _obey(self, do: str, operation: Mapping[str, Any]) -> dict[str, Any]:
        match do:
            case "join":
                return self._join(operation)
            case "group":
                name, ranks = str(operation["group"]), tuple(int(rank) for rank in operation["ranks"])
                self._adapter.group(name, ranks)
                self._groups[name] = ranks
                return {}
            case "leave":
                self._adapter.leave()
                return {}
        if "call" not in operation:
            raise Unsupported(f"unknown operation {do}")
        return self._call(self._understand(do, operation))

    def _join(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        self._groups = {WORLD: self._groups[WORLD]}
        began = time.monotonic()
        self._adapter.join(
            World(
                rank=self._rank,
                size=self._size,
                master=self._environment["MASTER_ADDR"],
                port=int(operation["port"]),
                timeout_s=float(operation["timeout_s"]),
                attempt=int(operation["attempt"]),
                interface=self._environment["TESTBED_INTERFACE"],
                addresses=tuple(self._environment["TESTBED_ADDRESSES"].split(",")),
                sites=tuple(self._environment.get("TESTBED_SITES", "").split(",")),
            )
        )
        took_s = time.monotonic() - began
        offers: dict[str, Any] = {name: asdict(offer) for name, offer in self._adapter.offers.items()}
        offers |= {"groups": self._adapter.groups, "rebuilds": self._adapter.rebuilds}
        about = {"pid": os.getpid(), "library": self._adapter.library, "version": self._adapter.version}
        return about | {"offers": offers, "took_s": took_s}

    def _understand(self, do: str, operation: Mapping[str, Any]) -> Call:
        group = str(operation.get("group", WORLD))
        if group not in self._groups:
            raise ValueError(f"unknown group {group}")
        ranks = self._groups[group]
        if self._rank not in ranks:
            raise ValueError(f"rank {self._rank} is not a member of {group}")
        element_type = str(operation.get("type", "float32"))
        if element_type not in TYPES:
            raise Unsupported(f"unknown type {element_type}")
        root = int(operation.get("root", 0))
        return Call(
            do=do,
            number=int(operation["call"]),
            group=group,
            ranks=ranks,
            rank=ranks.index(self._rank),
            type=element_type,
            count=int(operation.get("count", 0)),
            reduction=str(operation.get("reduction", "sum")),
            root=root,
            to=int(operation.get("to", root)),
            seed=int(operation.get("seed", 0)),
            at=operation.get("at"),
            keep=bool(operation.get("keep", False)),
        )

    def _call(self, call: Call) -> dict[str, Any]:
        self._check_offered(call)
        takes_part = call.do != "send" or call.rank in (call.root, call.to)
        if takes_part:
            self._adapter.prepare(call)
        given, room = (self._adapter.place(call, array) for array in _buffers(call))
        _wait_until(call.at)
        began = time.monotonic()
        output: Buffer | None = None
        try:
            if takes_part:
                output = self._adapter.perform(call, given, room)
        except Unsupported:
            raise
        except Exception as error:
            return {"call": call.number, "began": began, "error": _words(error), "ended": time.monotonic()}
        ended = time.monotonic()
        answer: dict[str, Any] = {"call": call.number, "began": began, "ended": ended}
        if call.keep and output is not None:
            answer["output"] = f"{call.number}-{self._rank}.bin"
            self._adapter.fetch(call, output).tofile(self._folder / answer["output"])
        return answer

    def _check_offered(self, call: Call) -> None:
        offer = self._adapter.offers.get(call.do)
        if offer is None:
            raise Unsupported(f"{self._adapter.library} does not offer {call.do}")
        if call.do != "barrier" and call.type not in offer.types:
            raise Unsupported(f"{call.do} does not offer {call.type}")
        if offer.reductions and (call.reduction not in offer.reductions or _is_inexact(call)):
            raise Unsupported(f"{call.do} does not offer {call.reduction} of {call.type}")
        if call.group != WORLD and not self._adapter.groups:
            raise Unsupported("groups")


def _is_inexact(call: Call) -> bool:
    return call.reduction == "avg" and call.type in INTEGERS


def _buffers(call: Call) -> tuple[Array, Array]:
    """Return this rank's input, and room for its output."""
    blocks_in = call.size if call.do in ("reduce_scatter", "all_to_all") else 1
    blocks_out = call.size if call.do in ("all_gather", "all_to_all") else 1
    if call.do == "barrier" or (call.do in ("broadcast", "send") and call.rank != call.root):
        blocks_in = 0
    given = generate(call.type, blocks_in * call.count, seed=call.seed, call=call.number, rank=call.rank)
    room = np.empty(blocks_out * call.count, TYPES[call.type])
    room.view(np.uint8).fill(POISON)
    return given, room


def _wait_until(start_t: float | None) -> None:
    if start_t is None:
        return
    while (left := start_t - time.monotonic()) > 0:
        if left > SPIN_S:
            time.sleep(left - SPIN_S)


def _words(error: BaseException) -> str:
    """Format an error in one line, without the C++ frames that torch appends."""
    text = str(error).split("Exception raised from")[0]
    text = " ".join(text.split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
