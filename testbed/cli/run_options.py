"""The options that the verbs share which bring a lab up, train in it and take it down: run and compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from testbed.cli.verb import (
    AllowUncertified,
    ComputeOption,
    DataOption,
    Driver,
    Emulator,
    LabNameToMake,
    ModelOption,
    NoiseOption,
    Overrides,
    RunsFolder,
    Strict,
    Wait,
    read_overrides,
)

__all__ = ["RunOptions"]


@dataclass(frozen=True)
class RunOptions:
    """What is trained beside the strategy, and in which lab. A verb takes it as one parameter (``verb.verb``)."""

    data: DataOption = None
    compute: ComputeOption = None
    model: ModelOption = None
    noise: NoiseOption = None
    set_: Overrides = None
    name: LabNameToMake = None
    runs: RunsFolder = None
    driver: Driver = "auto"
    emulator: Emulator = "auto"
    strict: Strict = False
    allow_uncertified: AllowUncertified = False
    wait: Wait = False

    def keywords(self) -> dict[str, Any]:
        """Return them as the keyword arguments of :func:`testbed.run` and :func:`testbed.compare`.

        Raises UserError for an override that is no KEY=VALUE.
        """
        return {
            "set": read_overrides(self.set_),
            "name": self.name,
            "runs": self.runs,
            "data": self.data,
            "compute": self.compute,
            "model": self.model,
            "noise": self.noise,
            "strict": self.strict,
            "allow_uncertified": self.allow_uncertified,
            "driver": self.driver,
            "emulator": self.emulator,
            "wait": self.wait,
        }
