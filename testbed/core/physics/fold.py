"""The fold: the impairment of a direction while several faults are in force, and who made each of its values. Pure.

Changes are folded onto the link's own impairment in the order in which their faults began:

- Random loss, corruption and duplication of independent origin: 1 - product of (1 - p), the link's own included.
- Delay: the newest absolute delay, else the link's own; then all extra delays are added.
- Rate and largest packet: the least.
- Burst loss, jitter with its distribution, and reordering: the newest, as a whole. Older ones are masked.
- Queue and overhead: the newest.
- Darkness: one suffices.

Random loss beside a model of burst loss thins what the model lets pass: its states pass (1 - p) of the packets that
they passed, which is one model again. Corruption that the frame check detects loses the frame; beside corruption that
survives it is therefore part of the loss.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from testbed.core.physics.change import BurstLoss, Change, Jitter, Reordering
from testbed.core.physics.impairment import Impairment
from testbed.core.physics.parameters import text
from testbed.core.units import format_delay

__all__ = ["LINK", "Folded", "Named", "Value", "fold", "together"]

LINK: Final = "link"
"""The maker of the link's own values."""

Named = tuple[str, Change]
"""A change with the name of its fault."""

T = TypeVar("T", int, float)


@dataclass(frozen=True)
class Value:
    """One value in force, for people, and who made it: ids of faults, ``link``, ``protection``."""

    key: str
    text: str
    by: tuple[str, ...]


@dataclass(frozen=True)
class Folded:
    """The impairment in force; ``values`` has each of its values with its makers, ``masked`` the (fault, key) of what
    is stated and does not apply."""

    impairment: Impairment
    values: tuple[Value, ...]
    masked: tuple[tuple[str, str], ...]


def together(chances: Iterable[float]) -> float:
    """Return the probability of at least one of independent events; independent of their order, exact for one event.

    >>> together([0.5, 0.0, 0.5])
    0.75
    """
    found = [it for it in chances if it]
    if len(found) <= 1:
        return found[0] if found else 0.0
    return 1.0 if 1.0 in found else -math.expm1(math.fsum(math.log1p(-it) for it in found))


def fold(own: Impairment, changes: Sequence[Named] = (), link: str = LINK) -> Folded:
    """Return the impairment of a direction.

    Args:
        own: that of the healthy link; ``link`` names its maker.
        changes: in the order in which their faults began.
    """
    return _Fold(own, changes, link).result()


class _Fold:
    """One use of :func:`fold`: the makers of values are collected on the way."""

    def __init__(self, own: Impairment, changes: Sequence[Named], link: str) -> None:
        self._own, self._changes, self._link = own, changes, link
        self._values: list[Value] = []
        self._masked: list[tuple[str, str]] = []

    def result(self) -> Folded:
        own = self._own
        dark = [name for name, it in self._changes if it.dark]
        if dark:
            self._values.append(Value("dark", "no packet passes", tuple(dark)))
        delay_s = self._delay()
        rate_bps = self._least("rate", own.rate_bps, [(name, it.rate_bps) for name, it in self._changes])
        queue = self._newest("queue", own.queue_bytes, [(name, it.queue_bytes) for name, it in self._changes])
        overhead = self._newest(
            "overhead", own.overhead_bytes, [(name, it.overhead_bytes) for name, it in self._changes], shown=False
        )
        loss = self._chance("loss", 0.0 if own.chain else own.loss, [(name, it.loss) for name, it in self._changes])
        bursts = self._bursts()
        caught = self._chance(
            "corrupt", 0.0 if own.corrupt_survives else own.corrupt, [(name, it.corrupt) for name, it in self._changes]
        )
        surviving = self._chance(
            "corrupt_survives",
            own.corrupt if own.corrupt_survives else 0.0,
            [(name, it.corrupt_surviving) for name, it in self._changes],
        )
        duplicate = self._chance("duplicate", own.duplicate, [(name, it.duplicate) for name, it in self._changes])
        jitter, reordering = self._jitter(), self._reordering()
        largest = self._least("largest", own.largest_bytes, [(name, it.largest_bytes) for name, it in self._changes])
        if surviving and caught:
            loss, caught = together([loss, caught]), 0.0
        if dark or loss >= 1.0:
            # No duplication either: an emulator may duplicate a packet before it draws the loss of the original.
            loss, bursts, duplicate = 1.0, None, 0.0
        impairment = Impairment(
            delay_s=delay_s,
            rate_bps=rate_bps,
            queue_bytes=queue,
            overhead_bytes=overhead,
            corrupt=surviving or caught,
            corrupt_survives=surviving > 0,
            duplicate=duplicate,
            largest_bytes=largest,
            **dataclasses.asdict(_thinned(bursts, loss)),
            **dataclasses.asdict(jitter),
            **dataclasses.asdict(reordering),
        )
        return Folded(impairment, tuple(self._values), tuple(self._masked))

    def _delay(self) -> float:
        absolute = [(self._link, self._own.delay_s)]
        absolute += [(name, it.delay_s) for name, it in self._changes if it.delay_s is not None]
        extra = [(name, it.extra_s) for name, it in self._changes if it.extra_s]
        maker, base_s = absolute[-1]
        self._masked += [(name, "delay") for name, _ in absolute[1:-1]]
        delay_s = math.fsum([base_s, *(it for _, it in extra)])
        makers = tuple(dict.fromkeys([maker, *(name for name, _ in extra)]))
        self._values.append(Value("delay", format_delay(delay_s, 4), makers))
        return delay_s

    def _chance(self, key: str, own: float, stated: list[tuple[str, float]]) -> float:
        found = [(name, it) for name, it in [(self._link, own), *stated] if it]
        total = together(it for _, it in found)
        if found:
            shown = text("corrupt" if key == "corrupt_survives" else key, total)
            self._values.append(Value(key, shown, tuple(name for name, _ in found)))
        return total

    def _least(self, key: str, own: T, stated: list[tuple[str, T]]) -> T:
        """Return the least of the limits; 0 is none. Of several least ones the oldest made it."""
        limits: list[tuple[str, T]] = [(self._link, own)]
        limits = [(name, it) for name, it in limits + stated if it]
        if not limits:
            return own
        maker, least = min(limits, key=lambda it: it[1])
        self._masked += [(name, key) for name, _ in limits if name not in (maker, self._link)]
        self._values.append(Value(key, text(key, least), (maker,)))
        return least

    def _newest(self, key: str, own: T, stated: list[tuple[str, T | None]], shown: bool = True) -> T:
        found: list[tuple[str, T]] = [(self._link, own)]
        found += [(name, it) for name, it in stated if it is not None]
        self._masked += [(name, key) for name, _ in found[1:-1]]
        maker, value = found[-1]
        if value != own or (shown and value):
            self._values.append(Value(key, text(key, value), (maker,)))
        return value

    def _bursts(self) -> BurstLoss | None:
        own = self._own
        found = [(self._link, BurstLoss(own.loss, own.burst, own.p, own.r, own.h, own.k))] if own.chain else []
        found += [(name, it.burst_loss) for name, it in self._changes if it.burst_loss is not None]
        if not found:
            return None
        self._mask("burst", found)
        maker, bursts = found[-1]
        chain = bursts.chain
        # A chain that lets packets pass in its bad state has stays there, not runs of lost packets.
        runs = (
            f"runs of {chain.mean_burst:.4g}" if chain.h == 0 and chain.k == 1 else f"stays of {chain.mean_burst:.4g}"
        )
        self._values.append(Value("burst", f"{text('loss', chain.mean_loss)} in {runs}", (maker,)))
        return bursts

    def _jitter(self) -> Jitter:
        own = self._own
        found = [
            (
                self._link,
                Jitter(own.jitter_s, own.jitter_distribution, own.jitter_correlation, own.jitter_reorders),
            )
        ]
        found += [(name, it.jitter) for name, it in self._changes if it.jitter is not None]
        self._mask("jitter", found)
        maker, jitter = found[-1]
        if jitter.jitter_s or maker != self._link:
            words = f"{text('jitter', jitter.jitter_s)} {jitter.jitter_distribution}"
            words += f", correlation {text('correlation', jitter.jitter_correlation)}" * bool(jitter.jitter_correlation)
            words += ", reorders" * jitter.jitter_reorders
            self._values.append(Value("jitter", words, (maker,)))
        return jitter

    def _reordering(self) -> Reordering:
        found = [(self._link, Reordering(self._own.reorder, self._own.reorder_by_s))]
        found += [(name, it.reordering) for name, it in self._changes if it.reordering is not None]
        self._mask("reorder", found)
        maker, reordering = found[-1]
        if reordering.reorder or maker != self._link:
            words = f"{text('reorder', reordering.reorder)} by {text('reorder_by', reordering.reorder_by_s)}"
            self._values.append(Value("reorder", words, (maker,)))
        return reordering

    def _mask(self, key: str, found: Sequence[tuple[str, object]]) -> None:
        """Note all but the newest, except the link's own, which any fault may replace."""
        self._masked += [(name, key) for name, _ in found[:-1] if name != self._link]


def _thinned(bursts: BurstLoss | None, loss: float) -> BurstLoss:
    """Return the model with an additional random loss; without a model the random loss alone."""
    if bursts is None:
        return BurstLoss(loss=loss)
    if not loss:
        return bursts
    chain = bursts.chain
    return BurstLoss(p=chain.p, r=chain.r, h=chain.h * (1.0 - loss), k=chain.k * (1.0 - loss))
