"""Overlapping faults on the kernel's netem, whose values are read back by ``tc -j``."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from contract.emulator_contract import directions, lab  # noqa: F401
from contract.fold_contract import PLANS, RealPorts, World
from hypothesis import HealthCheck, Phase, given, settings
from netns.fiberd_lab import Lab, run
from oracles.fold_oracle import TOPOLOGY

from testbed.core.topology.resolve import load_text
from testbed.host.emulators.netem import Netem, available

WHY_NOT = available() if os.geteuid() == 0 else "needs root"
if WHY_NOT:
    pytest.skip(f"netem: {WHY_NOT}; test_in_vm.py runs this on a kernel that has it", allow_module_level=True)
pytestmark = [pytest.mark.alone, pytest.mark.netns]

EGRESS = {"l0:b": "l0-b", "l0:a": "l0-a"}
INGRESS = {"l0:b": "l0-a", "l0:a": "l0-b"}
FULL_FRAME, OVERHEAD = 1514, 24


@pytest.fixture
def netem(lab: Lab) -> Iterator[Netem]:  # noqa: F811
    link = load_text(TOPOLOGY, "l0.yaml").link("l0")
    there, back = (link.impairment(it) for it in ("l0:b", "l0:a"))
    emulator = Netem.start(lab.plant, directions(lab, there, back), {}, seed=7)
    yield emulator
    emulator.stop()


class OnNetem(World):
    """netem holds loss by the frame check as loss, and duplicates by parameters of its own: compared as it has them."""

    def compare(self, direction: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        caught = 0.0 if wanted["corrupt_survives"] else wanted["corrupt"]
        passing = 1 - caught
        if wanted["burst"]:
            p, r, h, k = wanted["burst"]
            expected = {"p": p, "r": r, "1-h": 1 - h * passing, "1-k": 1 - k * passing, "duplicate": 0.0, "loss": 0.0}
            seen = {key: found[key] for key in expected}
        else:
            lost = 1 - (1 - wanted["loss"]) * passing
            own_loss, own_duplicate = found["loss"], found["duplicate"]
            # netem clones before it draws losses: a packet is missing if it is lost and was not cloned, and comes twice
            # if it was cloned and neither copy is lost.
            expected = {"missing": lost, "twice": (1 - lost) * wanted["duplicate"], "p": 0.0}
            twice = own_duplicate * (1 - own_loss) ** 2
            seen = {"missing": (1 - own_duplicate) * own_loss, "twice": twice, "p": found["p"]}
        expected |= {
            "corrupt": wanted["corrupt"] if wanted["corrupt_survives"] else 0.0,
            "delay": wanted["delay"],
            "rate": wanted["rate"] / 8,
            "queue": float(round(wanted["queue"] * FULL_FRAME / (FULL_FRAME + OVERHEAD))),
            "table": bool(wanted["jitter"][0] or wanted["reorder"][0]),
            "in order": not wanted["jitter"][2] and not wanted["reorder"][0],
            "drops larger": bool(wanted["largest"]),
        }
        seen |= {key: found[key] for key in expected if key not in seen}
        wrong = {key: (seen[key], it) for key, it in expected.items() if not _close(key, seen[key], it)}
        said = {name: (it.kind, it.target, it.parameters, it.at) for name, it in self.standing.items()}
        assert not wrong, f"{direction}: (found, expected) of {wrong} while in force: {said}"


def _close(key: str, found: Any, wanted: Any) -> bool:
    """tc prints whole microseconds, and shares to six digits."""
    if isinstance(wanted, bool):
        return found is wanted
    tolerance = {"delay": 1.1e-6, "rate": 1.0, "queue": 1.0}.get(key, 2e-5 * abs(wanted) + 1e-8)
    return bool(abs(found - wanted) <= tolerance)


class Reader:
    """Reads all at once when asked for the first direction: a start of tc takes 45 ms in this machine."""

    def __init__(self, plant: str, folder: Path) -> None:
        self.plant, self.batch, self.found = plant, folder / "batch", dict[str, Mapping[str, Any]]()
        filters = [f"filter show dev {INGRESS[it]} ingress" for it in EGRESS]
        self.batch.write_text("\n".join(["qdisc show", *filters]) + "\n")

    def __call__(self, direction: str) -> Mapping[str, Any]:
        if direction == next(iter(EGRESS)):
            said = run("tc", "-n", self.plant, "-r", "-j", "-batch", self.batch)
            qdiscs, *filters = _documents(said)
            self.found = {
                it: _values({record["kind"]: record["options"] for record in qdiscs if record["dev"] == EGRESS[it]}, of)
                for it, of in zip(EGRESS, filters, strict=True)
            }
        return self.found[direction]


def _documents(said: str) -> list[Any]:
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(said.rstrip()):
        document, at = decoder.raw_decode(said, at)
        found.append(document)
        while at < len(said) and said[at].isspace():
            at += 1
    return found


def _values(kinds: Mapping[str, Any], filters: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    netem, tbf = kinds["netem"], kinds["tbf"]
    chain = netem.get("loss-gemodel", {})
    return {
        "delay": netem.get("delay", {}).get("delay", 0.0),
        "table": netem.get("delay", {}).get("jitter", 0.0) > 0,
        "loss": netem.get("loss-random", {}).get("loss", 0.0),
        "p": chain.get("p", 0.0),
        "r": chain.get("r", 0.0),
        "1-h": chain.get("1-h", 0.0),
        "1-k": chain.get("1-k", 0.0),
        "duplicate": netem.get("duplicate", {}).get("duplicate", 0.0),
        "corrupt": netem.get("corrupt", {}).get("corrupt", 0.0),
        "in order": netem.get("rate", {}).get("rate", 0) > 0,
        "rate": float(tbf["rate"]),
        "queue": float(tbf["limit"]),
        "drops larger": {it["protocol"] for it in filters} > {"all"},
    }


def test_any_faults_in_any_order_leave_the_fold_of_those_in_force(
    lab: Lab,  # noqa: F811
    netem: Netem,
    tmp_path: Path,
) -> None:
    numbers = itertools.count()

    @settings(
        max_examples=60 if os.environ.get("TESTBED_THOROUGH") else 3,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(moves=PLANS, order=st.lists(st.integers(0, 20), max_size=8))
    def play(moves: Sequence[tuple[str, Any]], order: Sequence[int]) -> None:
        path = tmp_path / f"journal{next(numbers)}.jsonl"
        world = OnNetem(RealPorts(lab), netem, Reader(lab.plant, tmp_path), path)
        world.check()
        world.play(moves)
        assert world.in_force.differences(netem.differences) == []
        world.heal_from_the_journal(order)

    play()
