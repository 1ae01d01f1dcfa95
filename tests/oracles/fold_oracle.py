"""What a direction must have while several faults are in force: arithmetic of its own, which imports nothing of the
testbed.

A *statement* is what one fault says of one direction at present, as a plain mapping; keys that it does not say are
missing: ``loss``, ``caught`` and ``survives`` (corruption), ``duplicate``, ``delay``, ``extra``, ``rate``, ``queue``,
``largest``, ``burst`` (p, r, h, k), ``jitter`` (s, distribution, reorders), ``reorder`` (share, s), ``dark``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st

Statement = Mapping[str, Any]
DIRECTIONS = ("l0:b", "l0:a")

OWN: Statement = {"delay": 5e-3, "rate": 100e6, "queue": 200_000, "loss": 0.002}
"""The healthy link of :data:`TOPOLOGY`."""
SECOND_DELAY_S = 7e-3
TOPOLOGY = b"""
scale: 1
sites: {a: {nodes: 1}, b: {nodes: 1}}
links:
  l0: {between: [a, b], km: 10, impair: {delay: 5ms, rate: 100M, queue: 200000, loss: 0.2%}}
"""


def expected(own: Statement, statements: Sequence[Statement]) -> dict[str, Any]:
    """Return the values of a direction; ``statements`` are in the order in which their faults began."""

    def said(key: str) -> list[Any]:
        return [it[key] for it in statements if key in it]

    def any_of(key: str) -> float:
        passing = 1.0 - own.get(key, 0.0)
        for chance in said(key):
            passing *= 1.0 - chance
        return 1.0 - passing

    def newest(key: str, default: Any) -> Any:
        return [own.get(key, default), *said(key)][-1]

    def least(key: str) -> Any:
        limits = [it for it in [own.get(key, 0), *said(key)] if it]
        return sorted(limits)[0] if limits else 0

    loss, caught, survives, duplicate = any_of("loss"), any_of("caught"), any_of("survives"), any_of("duplicate")
    burst = newest("burst", None)
    if survives > 0 and caught > 0:  # a frame that the check drops is a lost packet
        loss, caught = 1 - (1 - loss) * (1 - caught), 0.0
    if said("dark"):
        loss, burst, duplicate = 1.0, None, 0.0
    if burst is not None and loss > 0:
        p, r, h, k = burst
        burst, loss = (p, r, h * (1 - loss), k * (1 - loss)), 0.0
    return {
        "delay": newest("delay", 0.0) + sum(said("extra")),
        "rate": least("rate"),
        "queue": newest("queue", 0),
        "largest": least("largest"),
        "loss": loss,
        "burst": burst,
        "corrupt": survives or caught,
        "corrupt_survives": survives > 0,
        "duplicate": duplicate,
        "jitter": newest("jitter", (0.0, "normal", False)),
        "reorder": newest("reorder", (0.0, 0.0)),
    }


def conflict(one: Statement, other: Statement) -> bool:
    """Whether one netem qdisc cannot hold both."""
    for first, second in ((one, other), (other, one)):
        if "duplicate" in first and "burst" in second:
            return True
        if first.get("reorder", (0, 0))[0] and second.get("jitter", (0, "", True))[0] and not second["jitter"][2]:
            return True
    return False


@dataclass
class Fault:
    """A fault as `inject` takes it, and what it states in each of its phases, by direction.

    ``down``: the ends that it takes down in each phase. The last phase stays; ``cycle``: they repeat.
    """

    kind: str
    target: str
    parameters: dict[str, str]
    phases: list[Statement] = field(repr=False)
    down: list[frozenset[str]] = field(default_factory=list)
    cycle: bool = False
    at: int = 0

    @property
    def directions(self) -> tuple[str, ...]:
        return DIRECTIONS if self.target == "l0" else (self.target,)

    def says(self, direction: str) -> Statement:
        return self.phases[self.at] if direction in self.directions else {}

    @property
    def ends_down(self) -> frozenset[str]:
        return self.down[self.at] if self.down else frozenset()

    def advance(self) -> None:
        last = len(self.phases) - 1
        self.at = 0 if self.cycle and self.at == last else min(self.at + 1, last)


TARGETS = st.sampled_from(("l0", *DIRECTIONS))
PERCENT = st.integers(1, 400).map(lambda it: it / 100)


def _impair(words: str, statement: Statement) -> tuple[str, dict[str, str], list[Statement]]:
    return "impair", dict(word.split("=") for word in words.split()), [statement]


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    """Draw a fault that the healthy link can have."""
    target = draw(TARGETS)
    name = draw(st.sampled_from(sorted(_KINDS)))
    kind, parameters, phases = _KINDS[name](draw)
    if kind in ("cut", "flap"):
        ends = frozenset({"l0-a", "l0-b"} if target == "l0" else {f"l0-{target[-1]}"})
        return Fault(kind, target, parameters, phases, [ends if it else frozenset() for it in (1, 0)][: len(phases)],
                     cycle=kind == "flap") if parameters.get("carrier") != "silent" else Fault(
                         kind, target, parameters, [{"dark": True}])  # fmt: skip
    return Fault(kind, target, parameters, phases)


def _chance(parameter: str, key: str) -> Any:
    def drawn(draw: st.DrawFn) -> Any:
        percent = draw(PERCENT)
        return _impair(f"{parameter}={percent}%", {key: percent / 100})

    return drawn


def _surviving(draw: st.DrawFn) -> Any:
    percent = draw(PERCENT)
    return "corruption", {"share": f"{percent}%", "survives": "true"}, [{"survives": percent / 100}]


def _bursts(draw: st.DrawFn) -> Any:
    percent, burst = draw(PERCENT), draw(st.integers(2, 20))
    loss, r = percent / 100, 1 / burst
    return _impair(f"loss={percent}% burst={burst}", {"burst": (loss * r / (1 - loss), r, 0.0, 1.0)})


def _chain(draw: st.DrawFn) -> Any:
    p, r, h, k = draw(PERCENT), draw(st.integers(5, 90)), draw(st.integers(0, 50)), draw(st.integers(90, 100))
    return _impair(f"p={p}% r={r}% h={h}% k={k}%", {"burst": (p / 100, r / 100, h / 100, k / 100)})


def _jitter(draw: st.DrawFn) -> Any:
    us, shape = draw(st.integers(1, 100)), draw(st.sampled_from(("uniform", "normal", "pareto", "paretonormal")))
    return "jitter", {"amount": f"{us}us", "distribution": shape}, [{"jitter": (us / 1e6, shape, False)}]


def _loose_jitter(draw: st.DrawFn) -> Any:
    us = draw(st.integers(1, 100))
    return _impair(f"jitter={us}us jitter_reorders=true", {"jitter": (us / 1e6, "normal", True)})


def _reorder(draw: st.DrawFn) -> Any:
    percent, us = draw(st.integers(1, 50)), draw(st.integers(100, 2000))
    return _impair(f"reorder={percent}% reorder_by={us}us", {"reorder": (percent / 100, us / 1e6)})


def _delay(draw: st.DrawFn) -> Any:
    ms = draw(st.integers(2, 20))
    kind = draw(st.sampled_from(("impair", "latency-step")))
    return kind, {"delay": f"{ms}ms"}, [{"delay": ms / 1e3}]


def _extra(draw: st.DrawFn) -> Any:
    us = draw(st.integers(1, 5000))
    return "latency-step", {"extra": f"{us}us"}, [{"extra": us / 1e6}]


def _moved(draw: st.DrawFn) -> Any:
    us = draw(st.integers(1, 5000))
    return "latency-step", {"extra": f"{us}us", "gap": "30s"}, [{"dark": True}, {"extra": us / 1e6}]


def _moved_to(draw: st.DrawFn) -> Any:
    ms = draw(st.integers(2, 20))
    return "latency-step", {"delay": f"{ms}ms", "gap": "30s"}, [{"dark": True}, {"delay": ms / 1e3}]


def _rate(draw: st.DrawFn) -> Any:
    mbps = draw(st.integers(5, 100))
    return _impair(f"rate={mbps}M", {"rate": mbps * 1e6})


def _squeeze(draw: st.DrawFn) -> Any:
    percent = draw(st.integers(5, 95))
    return "rate-squeeze", {"to": f"{percent}%"}, [{"rate": OWN["rate"] * percent / 100}]


def _queue(draw: st.DrawFn) -> Any:
    size = draw(st.integers(2000, 1_000_000))
    return _impair(f"queue={size}", {"queue": size})


def _hole(draw: st.DrawFn) -> Any:
    size = draw(st.integers(600, 1400))
    return "mtu-black-hole", {"largest": f"{size}B"}, [{"largest": size}]


def _cut(draw: st.DrawFn) -> Any:
    carrier = {"carrier": "silent"} if draw(st.booleans()) else {}
    return "cut", carrier, [{}]


def _flap(draw: st.DrawFn) -> Any:
    return "flap", {"down": "100s", "up": "100s"}, [{}, {}]


def _brown_out(draw: st.DrawFn) -> Any:
    """1000 steps of a geometric ramp of the fiber's whole loss; of that the link's own is not the fault's.

    A step takes 50 s: a keeper that is late skips steps, and none must be due while the test runs.
    """
    first, last = draw(st.integers(1, 3)), draw(st.integers(4, 9))
    ramp = [first / 100 * (last / first) ** (step / 1000) for step in range(1000)] + [last / 100]
    own = OWN["loss"]
    return (
        "brown-out",
        {"from": f"{first}%", "loss": f"{last}%", "over": "50000s"},
        [{"loss": 1 - (1 - loss) / (1 - own)} for loss in ramp],
    )


_KINDS = {
    "loss": _chance("loss", "loss"),
    "corrupt": _chance("corrupt", "caught"),
    "duplicate": _chance("duplicate", "duplicate"),
    "surviving": _surviving,
    "bursts": _bursts,
    "chain": _chain,
    "jitter": _jitter,
    "loose jitter": _loose_jitter,
    "reorder": _reorder,
    "delay": _delay,
    "extra": _extra,
    "moved": _moved,
    "moved to": _moved_to,
    "rate": _rate,
    "squeeze": _squeeze,
    "queue": _queue,
    "hole": _hole,
    "cut": _cut,
    "flap": _flap,
    "brown-out": _brown_out,
}

MOVES = st.one_of(
    *[faults().map(lambda it: ("begin", it))] * 6,
    *[st.integers(0, 20).map(lambda it: ("heal", it))] * 2,
    st.integers(0, 20).map(lambda it: ("advance", it)),
    st.booleans().map(lambda it: ("second path", it)),
    st.just(("crash", 0)),
)
"""One thing that happens to the link."""


def close(found: Any, wanted: Any, relative: float = 1e-9) -> bool:
    """Whether two values are the same; numbers to ``relative``, and 1e-9 (a nanosecond) absolutely."""
    if isinstance(wanted, tuple):
        return isinstance(found, tuple) and all(map(close, found, wanted, [relative] * len(wanted)))
    if isinstance(wanted, float) and isinstance(found, int | float):
        return math.isclose(found, wanted, rel_tol=relative, abs_tol=1e-9)
    return bool(found == wanted)
