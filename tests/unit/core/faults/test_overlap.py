"""What a fault states, what it may not state, and what is refused beside another fault."""

from __future__ import annotations

import pytest
from builders.faults import fault, shaped
from builders.inputs import by_input

from testbed.core.faults.fault_kind import Compiled
from testbed.core.faults.overlap import refuse_overlap
from testbed.core.topology.resolve import load_text
from testbed.errors import UserError

TOPOLOGY = load_text(
    b"""
scale: 1
sites: {a: {nodes: 1}, b: {nodes: 1}}
links:
  plain: {between: [a, b], km: 10, impair: {delay: 5ms, rate: 100M}}
  lossy: {between: [a, b], km: 10, impair: {delay: 5ms, rate: 100M, loss: 10%, duplicate: 1%}}
  bursty: {between: [a, b], km: 10, impair: {delay: 5ms, rate: 100M, loss: 1%, burst: 8}}
""",
    "x.yaml",
)


Begun = tuple[str, Compiled]
"""A fault, with its name in a refusal."""


def begun(name: str, line: str) -> Begun:
    kind, target, *_ = line.split()
    return f"{name} ({kind} {target})", fault(line, TOPOLOGY)


def refuse(active: list[Begun], wanted: Begun) -> None:
    refuse_overlap(TOPOLOGY, dict(active), *wanted)


def pair(words: str, target: str) -> list[Begun]:
    """Return two faults that ``words`` name with a comma between them; the second is of link plain, both ways."""
    first, second = ((kind, parameters) for kind, _, parameters in (word.partition(" ") for word in words.split(", ")))
    return [begun("f1", f"{first[0]} {target} {first[1]}"), begun("f2", f"{second[0]} plain {second[1]}")]


@by_input(
    "words, said",
    {
        "impair duplicate=1%, impair loss=1% burst=8": "duplication beside burst loss",
        "impair duplicate=1%, impair p=1% r=10%": "duplication beside burst loss",
        "impair duplicate=30%, impair loss=50%": "duplication of 0.3 beside a loss of 0.5",
        "impair duplicate=30%, brown-out loss=50% over=10s": "duplication of 0.3 beside a loss of 0.5",
        "impair duplicate=30%, corruption share=50%": "duplication of 0.3 beside a loss of 0.5",
        "jitter amount=10us, impair reorder=1% reorder_by=1ms": "jitter would restore the order",
        "jitter amount=1ms, latency-step delay=2ms": "arrive before they were sent",
        "latency-step extra=31s, latency-step extra=30s": "0 to 60 s",
        "latency-step extra=31s, latency-step delay=30s gap=10ms": "0 to 60 s",
        "impair queue=1538, impair overhead=100": "cannot hold a full packet",
    },
)
def test_overlap_that_no_qdisc_holds_is_refused_whichever_came_first(words: str, said: str) -> None:
    faults = pair(words, "plain:b")
    for active, wanted in (faults, faults[::-1]):
        with pytest.raises(UserError, match=rf"plain:b beside {active[0][:2]} .*{said}.*; heal"):
            refuse([active], wanted)
        # Another fault that masks the conflict for now may be healed first.
        mask = begun("f3", "impair plain jitter=1us jitter_reorders=true")
        if "jitter" not in said and "reorder" not in words:
            with pytest.raises(UserError):
                refuse([active, mask], wanted)


@pytest.mark.parametrize(
    "line", ["latency-step plain extra=25s", "latency-step plain delay=40s", "brown-out plain loss=10% over=1s"]
)
def test_overlap_of_three_is_refused_at_its_most(line: str) -> None:
    """Each pair is possible."""
    others = ("impair plain duplicate=28%", "impair plain loss=10%")
    if "latency" in line:
        others = ("latency-step plain extra=15s", "latency-step plain extra=21s")
    first, second, third = (begun(f"f{number}", text) for number, text in enumerate((line, *others), 1))
    refuse([first], second)
    if "delay=40s" not in line:
        refuse([first], third)
        refuse([second], third)
    with pytest.raises(UserError, match=r"; heal (f1 first|one of them first)"):
        refuse([first, second], third)


@pytest.mark.parametrize(
    "words",
    [
        "impair duplicate=1%, impair loss=1%",
        "impair loss=1% burst=8, impair loss=5%",
        "impair loss=1% burst=8, impair p=1% r=10% h=5%",
        "impair jitter=10us jitter_reorders=true, impair reorder=1% reorder_by=1ms",
        "jitter amount=100us, latency-step delay=20ms",
        "cut carrier=silent, impair duplicate=90%",
        "impair loss=100%, impair duplicate=90%",
    ],
)
def test_overlap_that_one_qdisc_holds_is_not_refused(words: str) -> None:
    first, second = pair(words, "plain")
    refuse([first], second)
    refuse([second], first)


@pytest.mark.parametrize("target", ["plain:b", "lossy"])
def test_faults_of_different_directions_do_not_overlap(target: str) -> None:
    jitter = begun("f1", "jitter plain:a amount=10us")
    refuse([jitter], begun("f2", f"impair {target} reorder=1% reorder_by=1ms"))


@by_input(
    "line, said",
    {
        "impair plain rate=101M": "rate=101M: the rate of plain:b is 100 Mb/s, and a fault cannot raise it",
        "impair lossy loss=0": "loss=0: expected more than 0: a fault adds to the link's own",
        "impair lossy duplicate=0 corrupt=0": "corrupt=0: .*duplicate=0: |duplicate=0: .*corrupt=0: ",
        "impair lossy burst=8": "burst: needs a loss|burst=8: needs a loss",
        "impair plain largest=0": "largest=0: expected a size",
        "impair bursty duplicate=1%": "duplicate=1%: one netem cannot hold duplication beside burst loss",
        "impair lossy loss=1% burst=8": "duplication beside burst loss",
        "impair plain loss=1% burst=8 duplicate=1%": "duplication beside burst loss",
    },
)
def test_what_the_link_cannot_have_is_refused(line: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        begun("f1", line)


@by_input(
    "line, loss",
    {
        "impair lossy loss=50%": 0.55,
        "impair bursty loss=50%": 0.505,
        "impair bursty loss=2% burst=4": 0.02,
        "brown-out lossy loss=50% over=10s": 0.1,
    },
)
def test_loss_is_added_to_the_links_own(line: str, loss: float) -> None:
    for shape in shaped(line, TOPOLOGY).values():
        assert shape.mean_loss == pytest.approx(loss)
        assert not list(shape.findings())
