"""Properties: Steps that have a say in the value of a key while they are active."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.core.physics.change import Change
from testbed.core.physics.fold import Folded, fold
from testbed.core.physics.impairment import Impairment
from testbed.core.plan.step import Property
from testbed.core.units import format_percent


@dataclass(frozen=True)
class Carrier(Property):
    """An interface administratively up or down, which gives or takes the carrier of its peer."""

    namespace: str
    interface: str
    up: bool

    @property
    def key(self) -> tuple[str, ...]:
        return ("carrier", self.namespace, self.interface)

    @property
    def rest(self) -> Carrier:
        # A fiber's ends always have a Carrier of the lab below those of faults; ports of fabrics and of the management
        # network are created up.
        return Carrier(self.namespace, self.interface, True)

    def folded(self, in_force: Sequence[Property]) -> Property:
        """Return the port as down if any owner takes it down: one cut darkens the fiber, whatever began later."""
        ports = [effect for effect in in_force if isinstance(effect, Carrier)]
        return Carrier(self.namespace, self.interface, all(port.up for port in ports))

    @property
    def within(self) -> tuple[str, ...]:
        return (self.namespace,)

    def __str__(self) -> str:
        return f"carrier {self.namespace}:{self.interface} {'up' if self.up else 'down'}"


@dataclass(frozen=True)
class Shape(Property):
    """The whole impairment of one direction of a fiber; with ``flush``, packets in flight are lost.

    The lab sets that of the healthy link, and a link's protection that of the second path. Faults state a
    :class:`Changed`, which is folded onto it.
    """

    direction: str
    impairment: Impairment
    flush: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        return ("shape", self.direction)

    def __str__(self) -> str:
        impairment = self.impairment
        return (
            f"shape {self.direction} delay {impairment.delay_s * 1e6:g} us rate {impairment.rate_bps / 1e6:g} Mb/s "
            f"queue {impairment.queue_bytes} B loss {impairment.loss:g}"
        )

    def folded(self, in_force: Sequence[Property]) -> Property:
        return _shape(self.direction, in_force)


@dataclass(frozen=True)
class Changed(Property):
    """What a fault changes of one direction of a fiber; with ``flush``, packets in flight are lost."""

    direction: str
    change: Change
    flush: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        return ("shape", self.direction)

    def folded(self, in_force: Sequence[Property]) -> Property:
        return _shape(self.direction, in_force)

    def __str__(self) -> str:
        return f"change {self.direction} {self.change}" + " flush" * self.flush


def fold_of(in_force: Sequence[tuple[str, Property]]) -> Folded:
    """Return the impairment of a direction from its (name, :class:`Shape` or :class:`Changed`) in force, oldest first.

    Changes are folded onto the newest Shape, whenever they began: a second path is another link below the same faults.
    Without any Shape they are folded onto a direction without impairments.
    """
    own, makers = Impairment(), dict[str, str]()
    for name, step in in_force:
        if isinstance(step, Shape):
            before, own = own, step.impairment
            fields = (field.name for field in dataclasses.fields(own))
            makers |= {field: name for field in fields if getattr(own, field) != getattr(before, field)}
    return fold(own, [(name, step.change) for name, step in in_force if isinstance(step, Changed)], makers)


def _shape(direction: str, in_force: Sequence[Property]) -> Shape:
    shapes = [effect for effect in in_force if isinstance(effect, Shape | Changed)]
    impairment = fold_of([(str(number), shape) for number, shape in enumerate(shapes)]).impairment
    return Shape(direction, impairment, any(shape.flush for shape in shapes))


@dataclass(frozen=True)
class Calibrated(Property):
    """What comes off every delay of one direction, in seconds, whatever sets that delay: ``physics/calibration.py``.

    ``plain_s``: instead, while that value is measured, the direction has this delay, no rate limit and no impairment.
    """

    direction: str
    taken_off_s: float
    plain_s: float | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return ("calibrated", self.direction)

    @property
    def rest(self) -> Calibrated:
        return Calibrated(self.direction, 0.0)

    def __str__(self) -> str:
        if self.plain_s is not None:
            return f"calibrate {self.direction}: {self.plain_s * 1e6:g} us and nothing else"
        return f"calibrated {self.direction}: {self.taken_off_s * 1e6:g} us off its delays"


@dataclass(frozen=True)
class Paused(Property):
    """The process of a rank stopped (SIGSTOP) or running; while stopped, its sockets stay open and its peers wait."""

    rank: int
    paused: bool

    @property
    def key(self) -> tuple[str, ...]:
        return ("paused", str(self.rank))

    @property
    def rest(self) -> Paused:
        return Paused(self.rank, False)

    def __str__(self) -> str:
        return f"rank {self.rank} {'paused' if self.paused else 'runs'}"


@dataclass(frozen=True)
class Slowed(Property):
    """A rank whose compute takes ``1 + by`` times as long: it sleeps for the difference and uses no CPU meanwhile."""

    rank: int
    by: float

    @property
    def key(self) -> tuple[str, ...]:
        return ("slowed", str(self.rank))

    @property
    def rest(self) -> Slowed:
        return Slowed(self.rank, 0.0)

    def __str__(self) -> str:
        return f"rank {self.rank} computes {format_percent(self.by, 4)} slower"


@dataclass(frozen=True)
class Throttled(Property):
    """The kernel's limit on the CPU time of a rank's process: ``cpu`` CPUs (0.3: 30 % of one); None: no limit."""

    rank: int
    node: str
    cpu: float | None

    @property
    def key(self) -> tuple[str, ...]:
        return ("throttled", self.node)

    @property
    def rest(self) -> Throttled:
        return Throttled(self.rank, self.node, None)

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node}: " + ("all CPUs" if self.cpu is None else f"{self.cpu:.0%} of a CPU")
