"""Records of a strategy's exchanges beyond the operations: sums that it adds itself, codecs, error feedback.

A strategy that gathers codes decodes them and adds the values itself. No operation of the process group shows this sum,
so the strategy hands its tensors to :meth:`Evidence.encoded`, which writes some of their elements and the checksums of
what is kept, without communication. The checkers then prove

* |x - decoded| <= the codec's bound, for this rank's own values;
* that all ranks decoded the same values of each member, those that the member itself decoded;
* that the total is the float32 sum of these in the order given, bit for bit (with weights: within rounding);
* that the mean of a weighted sum is that of its members' values with the shares that the twin computes;
* of error feedback, that accumulator = decay * before + added and residual = accumulator - decoded, and that each
  exchange begins with the residual that the one before left.

Outside a recorded job nothing is written.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from testbed_agents.checksums import ELEMENTS_DRAWN, crc32, elements, hexadecimal
from testbed_agents.records import Records

__all__ = ["Delayed", "Evidence"]

Bound = float | Tensor | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Delayed:
    """What a step of delayed Nesterov has besides: N and c, its number from 1, and the sum Δ.

    ``gathered_before``: elements of Δ at :meth:`Evidence.outer_positions`; ``gathered_after``: Δ, (elements,).
    """

    number: int
    delay: int
    activation: float
    gathered_before: Tensor
    gathered_after: Tensor


class Evidence:
    """Writes records ``encoded``, ``weighed``, ``outer`` and ``exchange``. Thread-safe; idle without ``records``."""

    def __init__(self, records: Records | None = None, seed: int = 0, step: Callable[[], int] = lambda: 0) -> None:
        self._records, self._seed, self._step = records, seed, step
        self._counts: Counter[tuple[str, int | None, tuple[int, ...]]] = Counter()
        self._lock = threading.Lock()

    def encoded(
        self,
        what: str,
        *,
        inputs: Tensor,
        decoded: Sequence[Tensor],
        ranks: Sequence[int],
        own: int,
        total: Tensor,
        bound: Bound = 0.0,
        fragment: int | None = None,
        weights: Sequence[float] | None = None,
        residual: Tensor | None = None,
        before: Tensor | None = None,
        added: Tensor | None = None,
        decay: float | None = None,
    ) -> None:
        """Record a sum of decoded values; call it before any of the tensors is changed. Raises RecordsError.

        Args:
            what: a word; with ``fragment`` and ``ranks`` it names a chain of exchanges, numbered in order.
            inputs: values of this rank before encoding, (elements,) float32: with error feedback, the accumulator.
            decoded: values of each member as this rank decoded them, in the order of addition; its own included.
            ranks: the members, global ranks, in the same order; ``own`` is this rank's index in it.
            total: the sum of ``decoded``, before any division; with ``weights``, of weight times value.
            bound: of |inputs - own decoded|: for all elements, by element, or a function of positions, (count,) int64.
            residual, before, added, decay: of error feedback: what is kept, was kept, came in, and the factor.
        """
        if self._records is None:
            return
        chain = (what, fragment, tuple(ranks))
        with self._lock:
            number = self._counts[chain]
            self._counts[chain] += 1
        places = self._positions(f"{what}/{fragment}/{number}", inputs.numel())
        line: dict[str, object] = {
            "what": what,
            "fragment": fragment,
            "ranks": list(ranks),
            "number": number,
            "at": places,
            "inputs": hexadecimal(elements([inputs], places)),
            "decoded": [hexadecimal(elements([values], places)) for values in decoded],
            "own": own,
            "total": hexadecimal(elements([total], places)),
            "bound": hexadecimal(_bound(bound, places)),
        }
        if weights is not None:
            line["weights"] = [float(weight) for weight in weights]
        for name, tensor in (("residual", residual), ("before", before), ("added", added)):
            if tensor is not None:
                line[name] = hexadecimal(elements([tensor], places))
        for name, tensor in (("residual_crc32", residual), ("before_crc32", before)):
            if tensor is not None:
                line[name] = crc32([tensor])
        if decay is not None:
            line["decay"] = float(decay)
        self._records.write("encoded", t=time.monotonic(), step=self._step(), **line)

    def weighed(
        self, name: str, *, own: Tensor, ranks: Sequence[int], share: float, mean: Tensor, taken: int | None
    ) -> None:
        """Record a weighted mean that an operation of the group summed. Raises RecordsError.

        Args:
            name: of the optimizer that it is for; always the same elements are recorded.
            own: values of this rank before weighting, (elements,); ``share``: with what; ``mean``: of all, (elements,).
            ranks: the members, global ranks.
            taken: the step after which ``own`` was taken; None: the one that is running.
        """
        if self._records is None:
            return
        places = self.outer_positions(name, own.numel())
        self._records.write(
            "weighed",
            t=time.monotonic(),
            step=self._step(),
            taken=self._step() if taken is None else taken,
            name=name,
            ranks=list(ranks),
            at=places,
            own=hexadecimal(elements([own], places)),
            share=float(share),
            mean=hexadecimal(elements([mean], places)),
        )

    def exchange(self, **fields: object) -> None:
        """Record what became of a push, or a version of the outer parameters (``Twin.wrong_exchanges``)."""
        if self._records is not None:
            self._records.write("exchange", t=time.monotonic(), **{"step": self._step(), **fields})

    def outer_taken(self, line: Mapping[str, object]) -> None:
        """Record what :meth:`outer_step` returned, perhaps in another thread. Raises RecordsError."""
        if self._records is not None:
            self._records.write("outer", t=time.monotonic(), step=self._step(), **line)

    def outer_step(
        self,
        name: str,
        *,
        before: Tensor,
        momentum_before: Tensor | None,
        gradient: Tensor,
        after: Tensor,
        momentum_after: Tensor | None,
        rate: float,
        momentum: float,
        before_crc32: str,
        restarted: bool = False,
        delayed: Delayed | None = None,
    ) -> dict[str, object]:
        """Return what is recorded of a step of an outer optimizer, without writing it.

        Without ``delayed`` a step is m ← momentum m + g; Θ ← Θ - rate (g + momentum m).

        Args:
            name: of the optimizer; its steps are one chain, in which each begins with what the one before left.
            before, momentum_before: elements of Θ and m before, at :meth:`outer_positions`.
            after, momentum_after: Θ and m, (elements,).
            gradient: g, (elements,).
            before_crc32: of Θ and m before.
            restarted: this is the first step of a chain.
            delayed: of :class:`~testbed_agents.exchange.outer_optimizers.DelayedNesterov`.
        """
        places = self.outer_positions(name, after.numel())
        m = {} if momentum_after is None else {"momentum_after": hexadecimal(elements([momentum_after], places))}
        if momentum_before is not None:
            m["momentum_before"] = hexadecimal(momentum_before)
        state = [after] if momentum_after is None else [after, momentum_after]
        delayed_fields: dict[str, object] = {}
        if delayed is not None:
            state.append(delayed.gathered_after)
            delayed_fields = {
                "number": delayed.number,
                "delay": delayed.delay,
                "activation": float(delayed.activation),
                "gathered_before": hexadecimal(delayed.gathered_before),
                "gathered_after": hexadecimal(elements([delayed.gathered_after], places)),
            }
        return {
            "name": name,
            "at": places,
            "before": hexadecimal(before),
            "gradient": hexadecimal(elements([gradient], places)),
            "after": hexadecimal(elements([after], places)),
            **m,
            "rate": float(rate),
            "momentum": float(momentum),
            "before_crc32": before_crc32,
            "restarted": restarted,
            "after_crc32": crc32(state),
            **delayed_fields,
        }

    @property
    def recording(self) -> bool:
        return self._records is not None

    def outer_positions(self, name: str, count_of: int) -> list[int]:
        """Return which elements of an outer optimizer are recorded: always the same ones."""
        return self._positions(f"outer/{name}", count_of)

    def _positions(self, chain: str, count_of: int) -> list[int]:
        chance = random.Random(f"{self._seed}/{chain}")
        return sorted(chance.sample(range(count_of), min(count_of, ELEMENTS_DRAWN)))


def _bound(bound: Bound, places: Sequence[int]) -> Tensor:
    indices = torch.tensor(list(places), dtype=torch.int64)
    if callable(bound) and not isinstance(bound, Tensor):
        return bound(indices).double()
    if isinstance(bound, Tensor) and bound.dim():
        return bound.reshape(-1)[indices].double()
    return torch.full((len(places),), float(bound), dtype=torch.float64)
