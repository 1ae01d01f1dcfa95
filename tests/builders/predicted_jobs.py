"""Jobs whose costs are known: a library of fixed costs, sites that are alike, a model without padding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from builders.twins import twin
from testbed.core.prediction.library_costs import PlainLibrary
from testbed.core.prediction.network import Network
from testbed.core.prediction.predicted_job import Job
from testbed.core.training.layout import asleep_tensors
from testbed.core.training.site_process import Process, StepDone, Steps

ENDLESS = 10**12


def plain(rounds: float = 1.0, software_s: float = 0.0, slots: int | None = None) -> PlainLibrary:
    """Return a library in which every operation takes so many one-way delays and so much software."""
    return PlainLibrary("plain", lambda kind, ranks, size: rounds, lambda kind, ranks, size: software_s, slots)


def job(
    words: str,
    *,
    sites: int = 2,
    ranks: int = 1,
    elements: int = 2**20,
    layers: int = 4,
    step_s: float = 1.0,
    slowdowns: Mapping[int, float] | None = None,
    rate_bps: float = math.inf,
    delay_s: float = 0.0,
    library: Any = None,
    **fields: Any,
) -> Job:
    """Return the job of a strategy in the words of ``--strategy``, at sites ``s0``, ``s1``, ... with ``ranks`` each.

    Args:
        slowdowns: how much longer a step takes, by the number of the site.
        fields: further ones of the layout.
    """
    names = [f"s{number}" for number in range(sites)]
    layout = {"tensors": asleep_tensors(elements, layers), "layers": layers, "steps": ENDLESS, **fields}
    found = twin(words, " ".join(name for name in names for _ in range(ranks)), **layout)
    steps_s = {name: step_s * (slowdowns or {}).get(number, 1.0) for number, name in enumerate(names)}
    return Job(found, Network.alike(names, rate_bps, delay_s), steps_s, library=library or plain())


def first_steps(process: Process, count: int) -> Process:
    """Run a process for so many steps."""
    done, answer = 0, None
    while done < count:
        action = process.send(answer)
        done += action.count if isinstance(action, Steps) else isinstance(action, StepDone)
        answer = yield action
