"""Which emulator a lab gets, by what was asked for and what the machine has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builders.tables import table

from testbed.errors import HostError, MissingTool
from testbed.lab import deploy

LACKING = "this kernel does not have it"


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, str]]:
    """``choose(wanted, netem=why)``: choose on a machine that has fiberd, and netem unless ``netem`` says why not."""

    def run(wanted: str, netem: str = "", fiberd: Exception | None = None) -> tuple[str, str]:
        def find_binary() -> Path:
            if fiberd:
                raise fiberd
            return Path("/fiberd")

        monkeypatch.setattr("testbed.host.emulators.fiberd.find_binary", find_binary)
        monkeypatch.setattr("testbed.host.emulators.netem.available", lambda: netem)
        return deploy.choose_emulator(wanted)

    return run


@table(
    "wanted, netem, chosen, why",
    {
        "auto is netem": ("auto", "", "netem", "this kernel has it"),
        "netem as requested": ("netem", "", "netem", "requested"),
        "fiberd as requested": ("fiberd", "", "fiberd", "requested"),
        "auto without netem is fiberd": ("auto", LACKING, "fiberd", f"not netem: {LACKING}"),
        "fiberd as requested without netem": ("fiberd", LACKING, "fiberd", "requested"),
    },
)
def test_choose_emulator(choose: Callable[..., object], wanted: str, netem: str, chosen: str, why: str) -> None:
    assert choose(wanted, netem) == (chosen, why)


def test_choose_emulator_refuses_what_is_missing(choose: Callable[..., object]) -> None:
    with pytest.raises(HostError, match=f"netem is not available: {LACKING}; use --emulator fiberd"):
        choose("netem", LACKING)
    with pytest.raises(MissingTool):
        choose("auto", "no", MissingTool("fiberd", "apt-get install gcc"))
