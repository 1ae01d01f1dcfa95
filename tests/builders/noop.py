"""A driver's handler and an emulator that do nothing, for tests of the layers above them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from testbed.core.physics.impairment import EmulatedDirection, Impairment
from testbed.core.plan.step import Property, Step
from testbed.host.drivers.driver import Facts
from testbed.host.emulators.emulator import DirectionStats, EmulatorInfo, refuse_unknown


class NoHandler:
    """Applies and undoes nothing."""

    def make(self, step: Step) -> Facts:
        return {}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        return None

    def assign(self, settings: Sequence[Property]) -> None:
        return None


class NoopEmulator:
    """Forwards nothing and records the impairments set: for dry runs, and for tests of the layers above."""

    info = EmulatorInfo("noop", "none")
    pid: int | None = None

    def __init__(self, directions: Sequence[EmulatedDirection]) -> None:
        self.impairments = {direction.name: direction.impairment for direction in directions}
        self._stopped = False

    def set(self, changes: Mapping[str, Impairment], flush: Collection[str] = ()) -> None:
        refuse_unknown([*changes, *flush], self.impairments)
        self.impairments.update(changes)

    def stats(self) -> tuple[DirectionStats, ...]:
        return tuple(DirectionStats(name) for name in self.impairments)

    def differences(self, expected: Mapping[str, Impairment]) -> list[str]:
        return []

    def record(self, nonce: int) -> None:
        return None

    def segmented(self) -> tuple[str, ...]:
        return ()

    def wait(self, timeout_s: float | None = None) -> int | None:
        if self._stopped or timeout_s is None:
            return 0  # no process to wait for
        time.sleep(timeout_s)
        return None

    def stop(self) -> None:
        self._stopped = True
