"""Contract of undo: after any network fault, the state is exactly as before, for every emulator.

Subclass it and provide ``lab``. The oracle is ``oracles/exact_state.py``. Every state is compared with the one taken
after bring-up, so that small leftovers of several faults add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from oracles import exact_state, oracle
from oracles.exact_state import Picture

import testbed

FILE = """
scale: 1000
defaults: {link: {optics: OpenZR+}}
sites: {east: {nodes: 1}, west: {nodes: 1}}
ducts: {bridge: 3 km, motorway: 37 km, coast: 437 km}
links:
  one: {between: [east, west], via: [motorway]}
  two: {between: [east, west], via: [bridge], protection: {type: 1+1, via: [coast]}}
"""

BOUND_S = 10.0
"""Time limit for the kernel to confirm the addresses that it assigns to an interface at carrier up."""


@contextmanager
def lab_of_all_faults(folder: Path, emulator: str) -> Iterator[testbed.Lab]:
    path = folder / "undo.yaml"
    path.write_text(FILE)
    made = testbed.up(
        str(path), name=oracle.unused_name(), driver="netns", emulator=emulator, agents=False, allow_uncertified=True
    )
    with made as lab:
        yield lab


Injection = tuple[str, str, dict[str, Any]]

DARK: list[Injection] = [
    ("cut", "one", {}),
    ("cut", "one:west", {}),
    ("cut", "one:west", {"carrier": "both"}),
    ("cut", "motorway", {}),
    ("cut", "two", {"path": "both"}),
    ("flap", "one", {"down": "10s", "up": "10s"}),
    ("gateway-down", "east", {}),
    ("node-kill", "west-0", {}),
    ("power-loss", "west", {}),
    ("evacuation", "east", {"warning": "20ms"}),
    ("management-partition", "east", {}),
]
"""Faults that take carriers down."""
SHAPED: list[Injection] = [
    ("cut", "one", {"carrier": "silent"}),
    ("cut", "two", {}),  # switches to the second path
    ("cut", "two", {"path": "protection"}),  # which is unused
    ("latency-step", "one", {"km": "247", "gap": "20ms"}),
    ("brown-out", "one:west", {"loss": "20%", "over": "10s"}),
    ("impair", "one", {"delay": "5ms", "loss": "1%", "jitter": "1ms", "rate": "50M"}),
    ("jitter", "one:east", {}),
    ("rate-squeeze", "one", {}),
    ("corruption", "one", {}),
    ("mtu-black-hole", "one:west", {"largest": "1000B"}),
]
"""Faults that change the emulation; on netem `tc` shows them, except on an unused path."""


def settled(fault: testbed.Fault) -> None:
    """Wait for the end of an evacuation's warning, which ends all processes in the site's nodes, including our `ip`."""

    def done() -> bool:
        fault.refresh()
        return fault.type != "evacuation" or fault.phase == "no power"

    oracle.until(done, BOUND_S, "the power is gone")


def nodes_of(before: Picture) -> set[str]:
    return {key.partition(":")[0] for key in before}


def seen(lab: testbed.Lab, before: Picture) -> bool:
    found = exact_state.picture(lab.name, nodes=nodes_of(before), sysctls=False)
    return any(before[key] != value for key, value in found.items())


def as_before(lab: testbed.Lab, before: Picture, sysctls: bool = False) -> None:
    """Check that the state is as before. ``sysctls`` once at the end is enough: no fault may have written one."""
    wanted = {key: value for key, value in before.items() if sysctls or not key.endswith("/proc/sys/net")}
    left: list[str] = []

    def same() -> bool:
        left[:] = exact_state.differences(
            wanted, exact_state.picture(lab.name, nodes=nodes_of(before), sysctls=sysctls)
        )
        return not left

    try:
        oracle.until(same, BOUND_S, "the state is as before")
    except AssertionError:
        pytest.fail("not as before:\n" + "\n".join(left))


class UndoContract:
    """Undo of all faults together."""

    nodes: tuple[str, ...] = ()
    """Nodes that are compared; all by default."""

    @pytest.fixture(scope="class")
    @classmethod
    def before(cls, lab: testbed.Lab) -> Picture:
        return exact_state.at_rest(lab.name, cls.nodes)

    def test_all_at_once_and_undone_in_the_order_in_which_they_began(self, lab: testbed.Lab, before: Picture) -> None:
        made = [lab.inject(fault, target, **parameters) for fault, target, parameters in DARK + SHAPED]
        for fault in made:
            settled(fault)
        assert seen(lab, before)
        for fault in made:
            fault.heal()
        lab.heal()
        as_before(lab, before, sysctls=True)


class EachUndoContract(UndoContract):
    """Undo of each fault separately as well, which is slow on a slow machine."""

    @pytest.mark.parametrize(("fault", "target", "parameters"), DARK + SHAPED)
    def test_all_is_as_before(
        self, lab: testbed.Lab, before: Picture, fault: str, target: str, parameters: dict[str, Any]
    ) -> None:
        with lab.inject(fault, target, **parameters) as begun:
            settled(begun)
            if (fault, target, parameters) in DARK:
                oracle.until(lambda: seen(lab, before), BOUND_S, "the fault is seen")
        lab.heal()  # protected links revert at once
        as_before(lab, before)
