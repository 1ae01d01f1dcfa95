"""The protocol of a twin: what a strategy must do, said without doing it.

A twin is made from the options of a strategy and a :class:`~testbed.core.training.layout.Layout`. Checkers, the wire
check, commits, goodput, the report and ``predict`` ask it; none of them knows a strategy's name. A twin is a file in
``testbed/core/training/strategies`` and a line in ``strategies_built.py``. The strategy itself is the file of the same
name in ``agents/testbed_agents/strategies``; the two share no code, so each checks the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from testbed.core.training.layout import Layout
from testbed.core.training.published_quality import PublishedQuality
from testbed.core.training.site_process import Process, Schedule
from testbed.core.training.strategy_operation import Operation

__all__ = ["Equal", "Mistake", "Option", "Twin"]


@dataclass(frozen=True)
class Option:
    """One option of a strategy, as a key of ``workload:`` and as ``NAME:option=value`` of a command.

    Attributes:
        name: in files and commands; the strategy's constructor takes it as an argument, with ``_`` for ``.``.
        default: if it is not written.
        parse: checks and converts what is written. Raises ``testbed.core.units.Unreadable`` with message and fix.
        meaning: one line of help.
    """

    name: str
    default: Any
    parse: Callable[[object], Any]
    meaning: str

    @property
    def argument(self) -> str:
        return self.name.replace(".", "_")


@dataclass(frozen=True)
class Equal:
    """After a step, the tensors ``name`` (``Strategy.fingerprints``) are equal on all of ``ranks``, bit for bit.

    ``by_version``: on those of them whose ``outer_version`` is the same, in whichever step each of them got there.
    """

    name: str
    ranks: tuple[int, ...]
    by_version: bool = False


@dataclass(frozen=True)
class Mistake:
    """What is wrong with an option: its name, a message, the fix. ``warning``: it runs, at a price that is named."""

    option: str
    message: str
    fix: str
    warning: bool = False


class Twin(ABC):
    """What a strategy does, for one job. Pure."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """What it does, in one line of ``ls strategies``."""
    source: ClassVar[str] = ""
    """The paper or library that it follows."""
    options: ClassVar[tuple[Option, ...]] = ()
    composed: ClassVar[bool] = True
    """Whether a step takes its compute and its operations, one after the other or beside the backward pass. If not,
    sites wait inside each other's passes, or not at all: :meth:`processes` says how."""
    unpredicted: ClassVar[str] = ""
    """Why the time of a step is not predicted before a run; empty if it is."""
    timed: ClassVar[bool] = True
    """Whether its operations can be timed alone before a job."""
    asleep: ClassVar[bool] = True
    """Whether it trains a model of declared size, whose layers are vectors; if not, it needs the GPT's matrices."""
    together: ClassVar[bool] = True
    """Whether all ranks apply the same exchanges after the same steps; if not, a server of outer parameters decides."""
    waits: ClassVar[bool] = True
    """Whether a site ever waits for another one."""
    quality: ClassVar[tuple[PublishedQuality, ...]] = ()
    """What others published about the quality of models that it trains; subclasses do not inherit it."""
    shown: ClassVar[tuple[tuple[str, int], ...] | None] = None
    """Options with which ``show`` predicts it over a topology; None: it does not. Subclasses do not inherit it."""
    published: ClassVar[bool] = False
    """Whether ``predict --as-published`` can simulate it as a paper does (``core/prediction/as_published.py``)."""
    sliced: ClassVar[bool] = True
    """Whether the ranks of a site send slices of one payload to other sites. If not, each sends as much, however many
    there are."""
    replicated: ClassVar[bool] = True
    """Whether each site holds the whole model. If not, a lost site ends the attempt: restart only."""

    def __init__(self, options: Mapping[str, Any], layout: Layout) -> None:
        """``options``: values by name, parsed; those that are missing have their default."""
        defaults = {option.name: option.default for option in self.options}
        self.values: dict[str, Any] = {**defaults, **options}
        self.layout = layout

    def mistakes(self) -> Sequence[Mistake]:
        """Return what is wrong with the options for this layout, all at once."""
        return ()

    @abstractmethod
    def operations(self, step: int) -> Sequence[Operation]:
        """Return the operations that begin in ``step`` (from 1), of all groups, in the order of each rank.

        With ``step`` 0, those that happen once, before the first step; with ``layout.steps + 1``, those of the end.
        """

    def busy_steps(self) -> Sequence[int]:
        """Return the steps of a cycle, from 1, that exchange more than the others, which are all alike."""
        return range(1, self.cycle + 1)

    def processes(self) -> Mapping[str, Process]:
        """Return what each site does in an endless job, by site or by a name of its own that begins with ``site/``."""
        return self.schedule.processes()

    @property
    def alike(self) -> bool:
        """Whether sites of the same speed and size do the same at the same time, in an endless job."""
        return self.schedule.together

    @cached_property
    def schedule(self) -> Schedule:
        """The exchanges of its steps, in an endless job."""
        return Schedule(self)

    def as_recorded(self, records: Iterable[Mapping[str, Any]]) -> Twin:
        """Return the twin of what happened in an attempt, of whose ranks these are the ``exchange`` records.

        For strategies whose operations depend on the paces of the sites: what each of them had to move is then known,
        the one that was late. Without records, what would have happened at equal paces.
        """
        return self

    def resumed(self, step: int) -> Sequence[Operation]:
        """Return what an attempt that resumes after ``step`` sends again, before its first step."""
        return ()

    @abstractmethod
    def equal(self, step: int) -> Sequence[Equal]:
        """Return what must be equal after ``step``, its exchange applied."""

    def committed(self, step: int) -> float:
        """Return how many inner steps are in the outer parameters once all ranks have finished ``step``.

        A fragment counts by its share of the parameters. Steps that no exchange has taken up yet do not count: they are
        lost if the job ends there. Never decreases; ``layout.steps`` at the end, because a job ends with an exchange.
        """
        return float(step)

    def inner_steps(self, step: int, rank: int = 0) -> int:
        """Return how many batches ``rank`` has trained on after ``step`` steps."""
        return step

    def pace(self, site: str) -> float:
        """Return how many inner steps ``site`` takes in a step, at the mean."""
        return 1.0

    def updates(self, step: int, rank: int = 0) -> int:
        """Return how often the inner optimizer of ``rank`` has updated its parameters after ``step`` steps."""
        return self.inner_steps(step, rank)

    def shares(self, step: int, name: str) -> Mapping[int, float]:
        """Return the share of each rank that takes part in the mean of an exchange which was taken after ``step``.

        ``name``: of the outer optimizer that the mean is for. Empty for equal shares.
        """
        return {}

    def outer_updates(self, step: int) -> int:
        """Return how many exchanges are in the outer parameters after ``step``; 0 where there is no outer loop."""
        return 0

    def wrong_exchanges(self, records: Iterable[Mapping[str, Any]]) -> Sequence[str]:
        """Return what is wrong with the ``exchange`` records of all ranks of an attempt, one sentence each.

        For strategies that write them, because their sites compare by version of the outer parameters, not by step.
        """
        return ()

    def parcel_bytes(self, fragment: int | None) -> float | None:
        """Return the bytes of one slice of a fragment as a push or an answer of a server; None without a server."""
        return None

    @property
    def longest_gap(self) -> int:
        """The most steps between two exchanges of a pair of sites: how long one may legally wait for another."""
        return 1

    @property
    def cycle(self) -> int:
        """Steps after which the operations recur: any so many steps in a row have all of them."""
        return self.longest_gap

    def cycle_of(self, site: str) -> int:
        """Steps that a site makes while the fastest one makes a cycle."""
        return self.cycle
