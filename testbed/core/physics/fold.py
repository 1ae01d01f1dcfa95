"""The fold: the impairment of a direction while several faults are in force, and who made each of its values. Pure.

Changes are folded onto the link's own impairment in the order in which their faults began:

- Random loss, corruption and duplication of independent origin: 1 - product of (1 - p), the link's own included.
- Delay: the newest absolute delay, else the link's own; then all extra delays are added.
- Rate and largest packet: the least.
- Burst loss, jitter with its distribution, and reordering: the newest, as a whole. Older ones are masked.
- Queue and overhead: the newest.
- Darkness: one suffices.

Random loss beside a model of burst loss reduces what each state of the model lets pass by the factor (1 - p), which is
one model again. Corruption that the frame check detects loses the frame; beside corruption that survives the check it
is therefore part of the loss.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from testbed.core.physics.change import BurstLoss, Change, Jitter, Reordering
from testbed.core.physics.impairment import Impairment
from testbed.core.physics.parameters import PARAMETERS, text
from testbed.core.units import format_delay

__all__ = ["LINK", "Folded", "Named", "Value", "fold", "together"]

LINK: Final = "link"
"""The maker of the link's own values."""

Named = tuple[str, Change]
"""A change with the name of its fault."""

V = TypeVar("V")


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
    positive = [chance for chance in chances if chance]
    if len(positive) <= 1:
        return positive[0] if positive else 0.0
    return 1.0 if 1.0 in positive else -math.expm1(math.fsum(math.log1p(-chance) for chance in positive))


def fold(own: Impairment, changes: Sequence[Named] = (), makers: Mapping[str, str] | None = None) -> Folded:
    """Return the impairment of a direction.

    Args:
        own: that of the healthy link.
        changes: in the order in which their faults began.
        makers: the makers of those fields of ``own`` that are not the link's.
    """
    return _Fold(own, changes, makers or {}).result()


class _Fold:
    """One use of :func:`fold`: the makers of values are collected on the way."""

    def __init__(self, own: Impairment, changes: Sequence[Named], makers: Mapping[str, str]) -> None:
        self._own, self._changes, self._makers = own, changes, makers
        self._values: list[Value] = []
        self._masked: list[tuple[str, str]] = []

    def result(self) -> Folded:
        own = self._own
        dark = [name for name, change in self._changes if change.dark]
        if dark:
            self._values.append(Value("dark", "no packet passes", tuple(dark)))
        delay_s = self._delay()
        jitter = self._jitter()
        rate_bps = self._least("rate", own.rate_bps, [change.rate_bps for _, change in self._changes])
        queue = self._newest("queue", own.queue_bytes, [change.queue_bytes for _, change in self._changes])
        overhead = self._newest("overhead", own.overhead_bytes, [change.overhead_bytes for _, change in self._changes])
        loss = self._chance("loss", 0.0 if own.chain else own.loss, [change.loss for _, change in self._changes])
        bursts = self._bursts()
        own_caught, own_surviving = (0.0, own.corrupt) if own.corrupt_survives else (own.corrupt, 0.0)
        caught = self._chance("corrupt", own_caught, [change.corrupt for _, change in self._changes])
        surviving = self._chance(
            "corrupt_survives", own_surviving, [change.corrupt_surviving for _, change in self._changes]
        )
        duplicate = self._chance("duplicate", own.duplicate, [change.duplicate for _, change in self._changes])
        reordering = self._reordering()
        largest = int(self._least("largest", own.largest_bytes, [change.largest_bytes for _, change in self._changes]))
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
        base_s, maker = self._newest_of("delay", self._own.delay_s, [change.delay_s for _, change in self._changes])
        extra = [(name, change.extra_s) for name, change in self._changes if change.extra_s]
        delay_s = math.fsum([base_s, *(extra_s for _, extra_s in extra)])
        makers = dict.fromkeys([maker, *(name for name, _ in extra)])
        self._values.append(Value("delay", format_delay(delay_s, 4), tuple(makers)))
        return delay_s

    def _chance(self, key: str, own: float, stated: Sequence[float]) -> float:
        makers = [self._maker("corrupt" if key == "corrupt_survives" else key), *(name for name, _ in self._changes)]
        positive = [(name, chance) for name, chance in zip(makers, [own, *stated], strict=True) if chance]
        total = together(chance for _, chance in positive)
        if positive:
            shown = text("corrupt" if key == "corrupt_survives" else key, total)
            self._values.append(Value(key, shown, tuple(name for name, _ in positive)))
        return total

    def _least(self, key: str, own: float, stated: Sequence[float]) -> float:
        """Return the least of the limits; 0 is none. Of several least ones the oldest made it."""
        makers = [name for name, _ in self._changes]
        least = min((limit for limit in [own, *stated] if limit), default=own)
        if least:
            named = zip([own, *stated], [self._maker(key), *makers], strict=True)
            maker = next(name for limit, name in named if limit == least)
            self._masked += [(name, key) for limit, name in zip(stated, makers, strict=True) if limit and name != maker]
            self._values.append(Value(key, text(key, least), (maker,)))
        return least

    def _newest(self, key: str, own: int, stated: Sequence[int | None]) -> int:
        value, maker = self._newest_of(key, own, stated)
        if maker != self._maker(key) or key == "queue":
            self._values.append(Value(key, text(key, value), (maker,)))
        return value

    def _bursts(self) -> BurstLoss | None:
        own = self._own
        mine = BurstLoss(own.loss, own.burst, own.p, own.r, own.h, own.k) if own.chain else None
        bursts, maker = self._newest_of("burst", mine, [change.burst_loss for _, change in self._changes])
        if bursts is not None:
            chain = bursts.chain
            # A chain that lets packets pass in its bad state has stays there, not runs of lost packets.
            runs = "runs" if chain.h == 0 and chain.k == 1 else "stays"
            shown = f"{text('loss', chain.mean_loss)} in {runs} of {chain.mean_burst:.4g}"
            self._values.append(Value("burst", shown, (maker,)))
        return bursts

    def _jitter(self) -> Jitter:
        own = self._own
        mine = Jitter(own.jitter_s, own.jitter_distribution, own.jitter_correlation, own.jitter_reorders)
        jitter, maker = self._newest_of("jitter", mine, [change.jitter for _, change in self._changes])
        if jitter.jitter_s or jitter is not mine:
            shown = f"{text('jitter', jitter.jitter_s)} {jitter.jitter_distribution}"
            shown += f", correlation {text('correlation', jitter.jitter_correlation)}" * bool(jitter.jitter_correlation)
            shown += ", reorders" * jitter.jitter_reorders
            self._values.append(Value("jitter", shown, (maker,)))
        return jitter

    def _reordering(self) -> Reordering:
        mine = Reordering(self._own.reorder, self._own.reorder_by_s)
        reordering, maker = self._newest_of("reorder", mine, [change.reordering for _, change in self._changes])
        if reordering.reorder or reordering is not mine:
            shown = f"{text('reorder', reordering.reorder)} by {text('reorder_by', reordering.reorder_by_s)}"
            self._values.append(Value("reorder", shown, (maker,)))
        return reordering

    def _newest_of(self, key: str, own: V, stated: Sequence[V | None]) -> tuple[V, str]:
        """Return the newest of what is stated, else ``own``, with its maker. Older ones are masked, and so is nothing
        of the link's own: any fault may replace that."""
        stated_values = [
            (candidate, name)
            for candidate, (name, _) in zip(stated, self._changes, strict=True)
            if candidate is not None
        ]
        self._masked += [(name, key) for _, name in stated_values[:-1]]
        return stated_values[-1] if stated_values else (own, self._maker(key))

    def _maker(self, key: str) -> str:
        """Return the maker of the link's own value."""
        return self._makers.get("loss" if key == "burst" else PARAMETERS[key].field, LINK)


def _thinned(bursts: BurstLoss | None, loss: float) -> BurstLoss:
    """Return the model with an additional random loss; without a model the random loss alone."""
    if bursts is None:
        return BurstLoss(loss=loss)
    if not loss:
        return bursts
    chain = bursts.chain
    return BurstLoss(p=chain.p, r=chain.r, h=chain.h * (1.0 - loss), k=chain.k * (1.0 - loss))
