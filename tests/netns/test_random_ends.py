"""Clients that end at random moments: nothing of their command is left there, and a lab is up whole or not at all."""

from __future__ import annotations

import json
import random
import signal
import time

import pytest
from builders.commands import check
from builders.conditions import HOSTS_THOROUGH
from client_of_hosts import Far, state
from oracles import oracle

pytestmark = HOSTS_THOROUGH

VERBS = {
    "up": ("up metro-single --name e --allow-uncertified", 6.0),
    "launch": ("launch -l far --allow-uncertified -- sleep 4", 6.0),
    "run": ("run metro-single --name e --steps 20 --allow-uncertified", 15.0),
    "validate": ("validate torch-gloo --name e --only speed --allow-uncertified", 15.0),
}
"""A command, and within how many seconds it is ended."""

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
MOMENTS = 20
LEFT_S = 45.0
"""An undo takes down what was brought up, which ranks that train delay on a loaded machine."""


@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize("verb", VERBS)
def test_an_end_at_a_random_moment_leaves_nothing(far: Far, verb: str, moment: int) -> None:
    line, within_s = VERBS[verb]
    chance = random.Random(f"{verb} {moment}")
    number, after_s = ENDS[moment % len(ENDS)], chance.uniform(0.0, within_s)
    client = far.begin(line)
    time.sleep(after_s)  # the moment itself, not a condition
    client.send_signal(number)
    ended_t = time.monotonic()
    _, told = client.communicate(timeout=LEFT_S)
    # Python itself tells of a SIGINT that comes before the testbed's first line.
    assert "Traceback" not in told or told.startswith("Could not import runpy module")

    def settled() -> bool:
        now = state(far.host)
        return now == far.before or ("e" in now[2] and not any("testbed-leash" in it or "leash" in it for it in now[0]))

    oracle.until(
        settled, LEFT_S, f"{verb} ended by {number.name} after {after_s:.2f} s leaves nothing: {state(far.host)}"
    )
    print(f"{verb} {number.name} {after_s:.2f} s: settled {time.monotonic() - ended_t:.2f} s later", flush=True)
    if "e" in state(far.host)[2]:
        assert verb == "up", "only up leaves a lab"
        assert json.loads(check(far("status -l e --json")))["state"] == "up"
        check(far("down e"))
    far.until_as_before(10.0)
