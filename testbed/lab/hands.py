"""The hands of the engine beside the driver's: the emulator's, the agents', and the one that only clears away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.core.physics.impairment import Direction
from testbed.core.plan.step import Agents, Fibers, Rank, Setting, Shape, Step
from testbed.errors import LabError
from testbed.host import process
from testbed.host.agents import WarmParent
from testbed.host.driver import Facts, Hand
from testbed.host.emulator import Emulator
from testbed.host.fiberd import Fiberd
from testbed.host.netem import Netem
from testbed.host.netns import NetnsDriver

AGENTS_BOUND_S = 90.0
"""How long importing torch and forking may take on a machine that does much else."""


class EmulatorHand:
    """Starts the emulator, sets directions, stops it. ``died`` is called, from a thread, when it ends unasked."""

    def __init__(self, driver: NetnsDriver, log: Path, died: Callable[[int | None], None]) -> None:
        self._driver, self._log, self._died = driver, log, died
        self.emulator: Emulator | None = None
        self._stopping = False

    def make(self, step: Step) -> Facts:
        assert isinstance(step, Fibers)
        plant = self._driver.path(step.plant)
        emulator: Emulator
        if step.emulator == "netem":
            emulator = Netem.start(plant, step.directions, self._senders(step.directions))
        else:
            emulator = Fiberd.start(plant, step.directions, step.seed, self._log)
        self.emulator = emulator
        threading.Thread(target=self._supervise, args=(emulator,), name="emulator", daemon=True).start()
        return {} if emulator.pid is None else {"pid": emulator.pid, "began": process.started(emulator.pid)}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        if self.emulator is not None:
            self._stopping = True
            self.emulator.stop()
            self.emulator = None
        elif facts:
            process.end(facts["pid"], facts["began"], grace_s=1.0)

    def assign(self, settings: Sequence[Setting]) -> None:
        if self.emulator is None:
            return  # it died: there is no light to shape, and the ends are down
        self.emulator.set({it.direction: it.impairment for it in settings if isinstance(it, Shape)})

    def _senders(self, directions: Sequence[Direction]) -> dict[str, tuple[Path, str]]:
        """For each end in the plant the gateway's end of the same cable, which is called as the link is."""
        # What an end lets out leads to the site that it faces.
        return {it.egress: (self._driver.path(f"{it.toward}-gw"), it.link) for it in directions}

    def _supervise(self, emulator: Emulator) -> None:
        status = emulator.wait()
        if not self._stopping:
            self.emulator = None
            self._died(status)


class AgentsHand:
    """Deploys one agent per rank from a warm parent that was started ahead of time, and knows what each is doing."""

    def __init__(self, driver: NetnsDriver, handles: Path, log: Path, heard: Callable[[dict[str, Any]], None]) -> None:
        self._driver, self._handles, self._log, self._tell = driver, handles, log, heard
        self._changed = threading.Condition()
        self._warm: WarmParent | None = None
        self._abandoned = False
        self.ranks: dict[int, Rank] = {}
        self.states: dict[int, dict[str, Any]] = {}

    def prepare(self) -> None:
        """Start importing torch while the rest of the lab is being built."""
        if self._warm is None:
            self._warm = WarmParent(self._log, self._heard)

    def make(self, step: Step) -> Facts:
        assert isinstance(step, Agents)
        self.prepare()
        self.ranks = {rank.rank: rank for rank in step.ranks}
        self.refresh(self.ranks)
        assert self._warm is not None
        return {"pid": self._warm.pid, "began": self._warm.began}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        if self._warm is not None:
            self._warm.stop()
            self._warm = None
            self.ranks.clear()
        elif facts:
            process.end(facts["pid"], facts["began"])

    def assign(self, settings: Sequence[Setting]) -> None:
        return None

    def abandon(self) -> None:
        """Whoever waits for ranks to come up waits in vain: the lab goes."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def refresh(self, ranks: Mapping[int, Rank] | None = None) -> None:
        """Have a fresh process for each of ``ranks`` (default: those that are gone or have a job behind them).

        Returns when all answer /metrics; raises LabError when one does not come up in time.
        """
        if ranks is None:
            ranks = {number: self.ranks[number] for number, it in self.states.items() if it["state"] != "waiting"}
        for number, rank in ranks.items():
            with self._changed:
                self.states[number] = {"state": "starting", "pid": 0, "reason": "", "ended_t": None}
            self.say(
                {
                    "do": "rank",
                    "rank": number,
                    "node": rank.node,
                    "site": rank.site,
                    "namespaces": {
                        "net": str(self._driver.path(rank.node)),
                        **{kind: str(self._handles / rank.node / kind) for kind in ("mnt", "uts", "ipc")},
                    },
                    "metrics": [rank.metrics, rank.port],
                }
            )
        until = time.monotonic() + AGENTS_BOUND_S
        with self._changed:
            while late := [n for n in ranks if self.states[n]["state"] == "starting"]:
                if self._abandoned:
                    raise LabError("the lab is being taken down")
                if self._warm is None or self._warm.exited.is_set():
                    raise LabError(
                        f"the training agents ended while they were starting; their last words: {self._words()}"
                    )
                if not self._changed.wait(min(1.0, until - time.monotonic())) and time.monotonic() >= until:
                    raise LabError(f"ranks {late} did not answer within {AGENTS_BOUND_S:g} s: {self._words()}")
            failed = [n for n in ranks if self.states[n]["state"] != "waiting"]
        if failed:
            raise LabError(f"ranks {failed} ended while they were starting: {self._words()}")

    def say(self, message: Mapping[str, Any]) -> None:
        if self._warm is None:
            raise LabError("this lab has no training agents")
        self._warm.say(message)

    def train(self, message: Mapping[str, Any]) -> None:
        """Give all ranks a job."""
        self.refresh()
        with self._changed:
            for state in self.states.values():
                state |= {"state": "training", "reason": "", "ended_t": None, "job": message["job"]}
        self.say({"do": "train", **message})

    def _words(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return "none"
        return lines[-1] if lines else "none"

    def _heard(self, event: dict[str, Any]) -> None:
        with self._changed:
            state = self.states.get(event.get("rank", -1))
            if event["event"] == "gone":
                reason = f"the warm parent {event['how']}"
                for it in self.states.values():
                    it |= {"state": "gone", "reason": reason, "ended_t": event["t"]}
            elif state is None:
                pass
            elif event["event"] == "ready":
                state |= {"state": "waiting", "pid": event["pid"]}
            elif event["event"] == "finished":
                state |= {
                    "state": "finished" if event["status"] == "ok" else event["status"],
                    "reason": event["reason"],
                    "ended_t": event["t"],
                }
            elif event["event"] == "died" and state["pid"] in (0, event["pid"]):
                how = process.how_ended(-event["signal"] if event.get("signal") else event.get("code", 0))
                reason = f"the process of rank {event['rank']} {how}"
                state |= {"state": "gone", "reason": reason, "ended_t": event["t"]}
            self._changed.notify_all()
        self._tell(event)


class Residue:
    """Clears away what a dead keeper's children may have left; makes and sets nothing."""

    def make(self, step: Step) -> Facts:
        raise LabError("the keeper of this lab is gone: take it down and up again")

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        if facts:
            process.end(facts["pid"], facts["began"], grace_s=0.5)

    def assign(self, settings: Sequence[Setting]) -> None:
        return None


def of_keeper(driver: NetnsDriver, emulator: EmulatorHand, agents: AgentsHand) -> dict[type[Step], Hand]:
    """Who does what while the keeper lives."""
    return {**dict.fromkeys(driver.kinds, driver), Fibers: emulator, Shape: emulator, Agents: agents}


def without_keeper(driver: NetnsDriver) -> dict[type[Step], Hand]:
    """Who does what when the keeper is gone and only its journal is left."""
    residue = Residue()
    return {**dict.fromkeys(driver.kinds, driver), Fibers: residue, Shape: residue, Agents: residue}
