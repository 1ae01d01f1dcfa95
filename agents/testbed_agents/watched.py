"""A process group that calls an observer at each operation, from any caller.

``init_process_group("watched")`` instead of ``"gloo"`` (import this module first). The group forwards every operation
to gloo, so DDP, FSDP2, functional collectives, pipelining and a strategy's own exchanges are seen in one place: which
group, what kind, how many bytes, when it began and ended. Sums and orders of addition are gloo's, bit for bit.

All groups have the hooks of the default group (``WatchedGroup.hooks``), one of which is the observer; without one the
group only counts its operations. The observer decides what is done with the tensors: :mod:`testbed_agents.check_log`
takes checksums and samples of them.

An operation has *ended* when its result is there and before a caller that waits for it continues: for those with a
future, in gloo's thread; for send and recv, which have none, in ``wait``. So an observer reads a result before the
caller can overwrite it, without a copy. Only a caller that waits for the future itself (the reducer of
DistributedDataParallel) may be ahead of the observer: torch wakes it before it calls back. An observer must wait for
those operations (``Operation.over``) before the step ends and its buckets are filled again.

Operations are numbered from 0 in each group, in the order in which this rank begins them, which is the same on all
ranks of the group. A message is numbered among those of its source, destination and tag.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Work

from testbed_agents.hooks import Hooks, Observer

__all__ = ["BACKEND", "Operation", "Parts", "WatchedGroup", "added"]

BACKEND = "watched"

Parts = Sequence[Sequence[Tensor]]
"""Tensors by position of a rank in the group."""

_ProcessGroup: Any = ProcessGroup
"""Untyped: operations have several signatures, which differ between versions of torch."""


REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
MESSAGES = ("send", "recv")
"""Kinds without a future: their end is noted in ``wait``."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Operation:
    """One operation of this rank. Times are seconds of CLOCK_MONOTONIC.

    Attributes:
        group: name of the group, the same on all its ranks.
        ranks: its global ranks in the group's order; positions below are indices of it.
        kind: all_reduce, reduce_scatter, reduce, all_gather, all_to_all, broadcast, gather, scatter, barrier, send, or
            recv.
        sequence: number in the group; of a message, among those of its channel. None until a source is known.
        byte_count: of an all_gather, gather: the gathered whole; of a scatter: the scattered whole; of others: what one
            rank puts in.
        inputs, outputs: tensors, one after the other. The same ones, where the result replaces the input.
        reduction: sum, avg, max, ...; empty where nothing is reduced.
        root: position of the source or destination of all; None for none.
        peer: position of the other rank of a message.
        step: in which it began, where the job waits for stragglers (``Hooks.stragglers``).
        sent: parts by destination; one part for all of them.
        received: parts by source; None where nothing was received.
        waited_s: how long the rank was blocked in ``wait``; None if it waited otherwise, or not yet.
        blocked_t: since when it is blocked there; None while it is not.
        error: why it failed; empty if it did not.
        note: for the observer.
    """

    group: str
    ranks: tuple[int, ...]
    kind: str
    byte_count: int
    inputs: list[Tensor]
    outputs: list[Tensor]
    sequence: int | None = None
    reduction: str = ""
    root: int | None = None
    peer: int | None = None
    tag: int = 0
    step: int = 0
    sent: Callable[[], Parts] | None = None
    received: Callable[[], Sequence[Sequence[Tensor] | None]] | None = None
    began_t: float = 0.0
    ended_t: float | None = None
    waited_s: float | None = None
    blocked_t: float | None = None
    error: str = ""
    note: Any = None
    position: int = 0
    """This rank's position in the group."""
    over: Callable[[], bool] = lambda: False
    """Whether its future is complete, so that the end has been noted or is being noted now."""
    _ended: threading.Lock = field(default_factory=threading.Lock)

    def forget(self) -> None:
        """Let go of the tensors."""
        self.inputs, self.outputs, self.sent, self.received = [], [], None, None

    def first_end(self) -> bool:
        """Return True once: to the caller that notes the end."""
        return self._ended.acquire(blocking=False)


def added(group: Any, parts: Sequence[Tensor], total: Tensor) -> None:
    """Call the observer with a sum of messages that this rank added itself: ``parts`` in the order of addition.

    All ranks of ``group`` have the same parts, and add them alike; those that got the sum itself have no parts.
    """
    if isinstance(group, WatchedGroup) and group.hooks.observer is not None:
        group.hooks.observer.added(group.label, group.ranks, parts, total)


def flat(tensors: Any) -> Iterator[Tensor]:
    """Return all tensors of nested lists, in order."""
    if isinstance(tensors, Tensor):
        yield tensors
    else:
        for part in tensors:
            yield from flat(part)


def listed(tensors: Any) -> list[Tensor]:
    """Return all tensors of nested lists, in order."""
    if type(tensors) is list and len(tensors) == 1 and isinstance(tensors[0], Tensor):
        return tensors.copy()  # as nearly all operations have it
    return list(flat(tensors))


def size_of(tensors: Any) -> int:
    return sum(int(tensor.nbytes) for tensor in listed(tensors))


class WatchedWork(Work):
    """gloo's handle of an operation, with the time that its owner is blocked in ``wait``."""

    def __init__(
        self, group: WatchedGroup, work: Any, operation: Operation, observer: Observer | None, has_future: bool
    ) -> None:
        super().__init__()
        self._group, self._work, self._operation = group, work, operation
        self._observer, self._has_future = observer, has_future

    def wait(self, timeout: Any = None) -> bool:
        began_t = self._operation.blocked_t = time.monotonic()
        try:
            with self._group.hooks.blocked():
                completed = self._wait(timeout)
        except RuntimeError as error:
            if not self._has_future:
                self._group.note_end(self._operation, self._observer, error)
            raise
        finally:
            self._operation.blocked_t = None
            self._operation.waited_s = (self._operation.waited_s or 0.0) + time.monotonic() - began_t
        if not self._has_future:
            if self._operation.kind == "recv" and self._operation.peer is None:
                self._operation.peer = int(self._work._source_rank())
            self._group.note_end(self._operation, self._observer)
        return completed

    def _wait(self, timeout: Any) -> bool:
        if self._group.bound is not None and timeout is None:
            timeout = self._group.bound
            if (stragglers := self._group.hooks.stragglers) is not None:
                stragglers.await_ranks(self._operation.ranks, self._operation.step, self._work.is_completed)
        return bool(self._work.wait() if timeout is None else self._work.wait(timeout))

    def get_future(self) -> Any:
        return self._work.get_future()

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> Any:
        return self._work.result()

    def synchronize(self) -> None:
        self._work.synchronize()

    def _source_rank(self) -> int:
        return int(self._work._source_rank())

    source_rank = _source_rank


class _Nothing(Work):
    """Handle of an operation that was not carried out, on purpose."""

    def __init__(self, value: list[Tensor]) -> None:
        super().__init__()
        self._future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        self._future.set_result(value)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future

    def is_completed(self) -> bool:
        return True


class WatchedGroup(_ProcessGroup):  # type: ignore[misc]
    """A gloo process group that calls ``hooks`` at its operations. ``ranks``: the global ones, in the group's order.

    A group of two has a connection for messages of each direction. gloo announces each receipt to the sender; behind
    what the receiver itself is sending, this would come late, and two large messages would take turns.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: Any, ranks: Sequence[int], hooks: Hooks) -> None:
        super().__init__(rank, size)
        self.hooks = hooks
        gloo = ProcessGroupGloo(store, rank, size, timeout)
        self._gloo: Any = gloo
        # gloo's own class lacks coalesced operations, a plain process group has them. This one has the backend too,
        # else functional collectives do not find the name of the group.
        self._inner = _plain_group(store, rank, size)
        for group in (self._inner, self):
            if torch.__version__ >= "2.6":
                group._set_default_backend(ProcessGroup.BackendType.GLOO)
            group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
        self._backward: Any = self._inner
        if size == 2:
            self._backward = ProcessGroupGloo(PrefixStore("backward", store), rank, size, timeout)
        self._ranks, self._position = tuple(ranks), rank
        self.bound: Any = None
        """How long a wait may last (a timedelta) once all ranks have come; None: gloo's timeout."""
        self._label = ""
        self._lock = threading.Lock()
        self._handles: deque[Any] = deque(maxlen=64 if torch.__version__ < "2.7" else 0)
        """torch before 2.7 drops handles of operations that it still waits for, and then waits forever."""
        self._count = itertools.count()
        self._messages: Counter[tuple[int, int, int]] = Counter()

    def getBackendName(self) -> str:
        return BACKEND

    @property
    def label(self) -> str:
        """The name in records: ``group_desc``; ``world`` for the default group; numbered from the second group of the
        same ranks on."""
        if self._label:
            return self._label
        with self._lock:
            if not self._label:
                name = str(self.group_desc)
                name = {"default_pg": "world", "undefined": "", "": ""}.get(name, name) or f"group:{self.group_name}"
                self.hooks.labels[name, self._ranks] += 1
                count = self.hooks.labels[name, self._ranks]
                self._label = name if count == 1 or name == "world" else f"{name}#{count}"
            return self._label

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its global ranks, in the group's order."""
        return self._ranks

    def _begun(self, operation: Operation, given: Any, begin: Callable[[Any], Any], observer: Observer | None) -> Any:
        """Begin ``operation`` by ``begin``, of ``given`` or what a deliberate error makes of it; return its handle."""
        planted, stragglers = self.hooks.planted, self.hooks.stragglers
        operation.position = self._position
        if planted is not None and not planted.entering(operation):
            return _Nothing(operation.outputs)
        if operation.kind not in MESSAGES:
            operation.sequence = next(self._count)
        elif operation.peer is not None:
            with self._lock:
                operation.sequence = self._number(operation)
        operation.began_t = time.monotonic()
        operation.step = stragglers.step if stragglers is not None else 0
        if observer is not None:
            observer.entered(operation)
        if planted is not None:
            given = planted.inputs(operation, given)
        try:
            return begin(given)
        except RuntimeError as error:
            self.note_end(operation, observer, error)
            raise

    def note_end(self, operation: Operation, observer: Observer | None, error: Exception | None = None) -> None:
        """Note the end of an operation once: ``wait`` may be called again."""
        if not operation.first_end():
            return
        operation.ended_t = time.monotonic()
        if error is not None:
            operation.error = str(error) or type(error).__name__
        elif self.hooks.planted is not None:
            self.hooks.planted.outputs(operation)
        if observer is not None:
            observer.left(operation)

    def _do(self, operation: Operation, given: Any, begin: Callable[[Any], Any]) -> Any:
        """Begin ``operation`` as :meth:`_begun` does; return the handle that its caller gets."""
        observer = self.hooks.observer
        work = self._begun(operation, given, begin, observer)
        if isinstance(work, _Nothing):
            return work
        if work is None:
            self.note_end(operation, observer)
            return None
        try:
            future = work.get_future()
        except RuntimeError:  # send and recv
            return self._handle(WatchedWork(self, work, operation, self._for_messages(observer), False))

        def ended(done: Any) -> None:
            try:
                done.value()
            except Exception as error:
                self.note_end(operation, observer, error)
            else:
                self.note_end(operation, observer)

        operation.over = future.done
        future.add_done_callback(ended)
        return self._handle(WatchedWork(self, work, operation, observer, True))

    def _handle(self, work: WatchedWork) -> WatchedWork:
        self._handles.append(work)
        return work

    def _number(self, operation: Operation) -> int:
        own, peer = self._position, operation.peer or 0
        channel = (own, peer, operation.tag) if operation.kind == "send" else (peer, own, operation.tag)
        self._messages[channel] += 1
        return self._messages[channel] - 1

    def _for_messages(self, observer: Observer | None) -> Observer | None:
        return None if observer is None else _Numbered(self, observer)

    def _operation(
        self, kind: str, inputs: Any, outputs: Any, byte_count: int | None = None, **fields: Any
    ) -> Operation:
        put_in = listed(inputs)
        return Operation(
            self.label,
            self._ranks,
            kind,
            size_of(put_in) if byte_count is None else byte_count,
            put_in,
            listed(outputs),
            **fields,
        )

    # Reductions

    def all_reduce_of(self, tensor: Tensor) -> torch.futures.Future[Tensor]:
        """Begin to sum ``tensor`` over the group, in place; the future has it, and is complete once the end is noted.

        As ``dist.all_reduce(tensor, async_op=True).get_future()`` of many: half of the cost over gloo's own.
        """
        operation = self._operation("all_reduce", [tensor], [tensor], reduction="sum")
        observer = self.hooks.observer
        work = self._begun(operation, [tensor], self._gloo.allreduce, observer)

        def ended(done: Any) -> Tensor:
            try:
                done.value()
            except Exception as error:
                self.note_end(operation, observer, error)
                raise
            self.note_end(operation, observer)
            return tensor

        summed: torch.futures.Future[Tensor] = work.get_future().then(ended)
        return summed

    def allreduce(self, tensors: Any, *options: Any, **named: Any) -> Any:
        operation = self._operation("all_reduce", tensors, tensors, reduction=_reduction(options, named))
        return self._do(operation, tensors, lambda given: self._inner.allreduce(given, *options, **named))

    def allreduce_coalesced(self, tensors: Any, *options: Any, **named: Any) -> Any:
        operation = self._operation("all_reduce", tensors, tensors, reduction=_reduction(options, named))
        return self._do(operation, tensors, lambda given: self._inner.allreduce_coalesced(given, *options, **named))

    def reduce(self, tensors: Any, *options: Any, **named: Any) -> Any:
        operation = self._operation("reduce", tensors, tensors, reduction=_reduction(options, named))
        operation.root = _root(options, named)
        return self._do(operation, tensors, lambda given: self._inner.reduce(given, *options, **named))

    def reduce_scatter(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        operation = self._operation("reduce_scatter", inputs, outputs, reduction=_reduction(options, named))
        listed = [inputs] if isinstance(outputs, Tensor) else inputs
        operation.sent = lambda: list(zip(*listed, strict=True))
        return self._do(operation, inputs, lambda given: self._inner.reduce_scatter(outputs, given, *options, **named))

    def reduce_scatter_single(self, output: Tensor, given: Tensor, *options: Any, **named: Any) -> Any:
        operation = self._operation("reduce_scatter", [given], [output], reduction=_reduction(options, named))
        operation.sent = lambda: _chunks([given], self.size())
        return self._do(
            operation, given, lambda sent: self._inner._reduce_scatter_base(output, sent, *options, **named)
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        operation = self._operation("reduce_scatter", inputs, outputs, reduction=_reduction(options, named))
        operation.sent = lambda: _chunks(inputs, self.size())
        return self._do(
            operation,
            inputs,
            lambda given: self._inner.reduce_scatter_tensor_coalesced(outputs, given, *options, **named),
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Operations that move data as it is

    def broadcast(self, tensors: Any, *options: Any, **named: Any) -> Any:
        root = _root(options, named)
        operation = self._operation("broadcast", tensors, tensors, root=root)
        self._from_root(operation, lambda: [operation.inputs])
        return self._do(operation, tensors, lambda given: self._inner.broadcast(given, *options, **named))

    def scatter(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        listed = [inputs] if isinstance(outputs, Tensor) else inputs
        whole = self.size() * size_of(outputs)
        operation = self._operation("scatter", inputs, outputs, whole, root=_root(options, named))
        self._from_root(operation, lambda: list(zip(*listed, strict=True)))
        return self._do(operation, inputs, lambda given: self._inner.scatter(outputs, given, *options, **named))

    def _from_root(self, operation: Operation, sent: Callable[[], Parts]) -> None:
        root, size = operation.root, self.size()
        if root == self._position:
            operation.sent = sent
        operation.received = lambda: [operation.outputs if source == root else None for source in range(size)]

    def gather(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        root = _root(options, named)
        whole = self.size() * size_of(inputs)
        operation = self._operation("gather", inputs, outputs, whole, root=root)
        operation.sent = lambda: [operation.inputs]
        if root == self._position:
            operation.received = lambda: list(zip(*outputs, strict=True))
        return self._do(operation, inputs, lambda given: self._inner.gather(outputs, given, *options, **named))

    def allgather(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        nested = [outputs] if isinstance(inputs, Tensor) else outputs
        return self._all_gather(
            inputs,
            outputs,
            lambda: list(zip(*nested, strict=True)),
            lambda given: self._inner.allgather(outputs, given, *options, **named),
        )

    def allgather_coalesced(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        return self._all_gather(
            inputs,
            outputs,
            lambda: outputs,
            lambda given: self._inner.allgather_coalesced(outputs, given, *options, **named),
        )

    def all_gather_single(self, output: Tensor, given: Tensor, *options: Any, **named: Any) -> Any:
        return self._all_gather(
            given,
            output,
            lambda: _chunks([output], self.size()),
            lambda copy: self._inner._allgather_base(output, copy, *options, **named),
        )

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        return self._all_gather(
            inputs,
            outputs,
            lambda: _chunks(outputs, self.size()),
            lambda given: self._inner.allgather_into_tensor_coalesced(outputs, given, *options, **named),
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _all_gather(self, inputs: Any, outputs: Any, received: Callable[[], Any], begin: Callable[[Any], Any]) -> Any:
        operation = self._operation("all_gather", inputs, outputs, size_of(outputs))
        operation.sent, operation.received = lambda: [operation.inputs], received
        return self._do(operation, inputs, begin)

    def alltoall(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        operation = self._operation("all_to_all", inputs, outputs)
        operation.sent = lambda: [[tensor] for tensor in inputs]
        operation.received = lambda: [[tensor] for tensor in outputs]
        return self._do(operation, inputs, lambda given: self._inner.alltoall(outputs, given, *options, **named))

    def all_to_all_single(
        self, output: Tensor, given: Tensor, rows_out: Any, rows_in: Any, *options: Any, **named: Any
    ) -> Any:
        operation = self._operation("all_to_all", [given], [output])
        operation.sent = lambda: _rows(given, rows_in, self.size())
        operation.received = lambda: _rows(output, rows_out, self.size())
        return self._do(
            operation,
            given,
            lambda copy: self._inner.alltoall_base(output, copy, rows_out, rows_in, *options, **named),
        )

    alltoall_base = all_to_all_single

    def barrier(self, *options: Any, **named: Any) -> Any:
        return self._do(self._operation("barrier", [], []), [], lambda _: self._inner.barrier(*options, **named))

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        operation = self._operation("send", tensors, [], peer=to, tag=tag)
        operation.sent = lambda: [operation.inputs]
        return self._do(operation, tensors, lambda given: self._toward(to).send(given, to, tag))

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        return self._recv(tensors, source, tag, lambda given: self._from(source).recv(given, source, tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        group = self._inner if self.size() != 2 else self._from(1 - self._position)
        return self._recv(tensors, None, tag, lambda given: group.recv_anysource(given, tag))

    def _toward(self, to: int) -> Any:
        """Return what carries messages to a position."""
        return self._backward if to < self._position else self._inner

    def _from(self, source: int) -> Any:
        return self._backward if source > self._position else self._inner

    def _recv(self, tensors: Any, source: int | None, tag: int, begin: Callable[[Any], Any]) -> Any:
        operation = self._operation("recv", [], tensors, size_of(tensors), peer=source, tag=tag)
        operation.received = lambda: [operation.outputs]
        return self._do(operation, tensors, begin)


def _plain_group(store: Any, rank: int, size: int) -> Any:
    if torch.__version__ < "2.6":
        return _ProcessGroup(store, rank, size, _ProcessGroup.Options("gloo"))
    return _ProcessGroup(store, rank, size)


class _Numbered:
    """Numbers a message whose source was unknown when its receipt began."""

    def __init__(self, group: WatchedGroup, observer: Observer) -> None:
        self._group, self._observer = group, observer

    def entered(self, operation: Operation) -> None:
        self._observer.entered(operation)

    def left(self, operation: Operation) -> None:
        if operation.sequence is None and operation.peer is not None:
            with self._group._lock:
                operation.sequence = self._group._number(operation)
        self._observer.left(operation)

    def added(self, group: str, ranks: tuple[int, ...], parts: Sequence[Tensor], total: Tensor) -> None:
        self._observer.added(group, ranks, parts, total)


def _chunks(tensors: Sequence[Tensor], size: int) -> Parts:
    """Return the part of each rank: one chunk of each tensor, all of them of equal size."""
    cut = [tensor.reshape(size, -1) if tensor.numel() else tensor.reshape(size, 0) for tensor in tensors]
    return [[parts[position] for parts in cut] for position in range(size)]


def _rows(tensor: Tensor, rows: Sequence[int], size: int) -> Parts:
    """Return the part of each rank: so many rows of it; as many for each if ``rows`` is empty."""
    counts = list(rows) or [tensor.shape[0] // size] * size
    return [[part] for part in torch.split(tensor, counts)]


def _option(options: Sequence[Any], named: dict[str, Any], name: str) -> Any:
    for option in (*options, *named.values()):
        if hasattr(option, name):
            return getattr(option, name)
    return None


def _reduction(options: Sequence[Any], named: dict[str, Any]) -> str:
    reduction = _option(options, named, "reduceOp")
    if reduction is None:
        reduction = next((option for option in (*options, *named.values()) if isinstance(option, dist.ReduceOp)), None)
    return "sum" if reduction is None else _name(getattr(reduction, "op", reduction))


@functools.cache
def _name(reduction: Any) -> str:
    return str(reduction).rpartition(".")[2].lower()


def _root(options: Sequence[Any], named: dict[str, Any]) -> int:
    root = _option(options, named, "rootRank")
    if root is None:
        root = named.get("root", options[0] if options and isinstance(options[0], int) else 0)
    return int(root)


def _create(options: Any, _: Any = None) -> WatchedGroup:
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    world = dist.group.WORLD  # None while the default group itself is made; torch makes groups for meshes by itself
    hooks = world.hooks if isinstance(world, WatchedGroup) else Hooks()
    return WatchedGroup(options.store, options.group_rank, options.group_size, options.timeout, ranks, hooks)


if BACKEND.upper() not in dist.Backend._plugins:
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
