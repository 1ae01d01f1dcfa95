"""SIGKILL at random moments of a lab under random faults: afterwards `heal` and `down` must find and undo everything.

::

    python tests/random_kills.py --count 100 --seed 1        # as root; ordinary tests run a few rounds
    python tests/random_kills.py --runs --count 30           # of `testbed run` with a job: tests/killed_runs.py

Each round starts an orchestrator (a process that brings a lab up and injects and heals faults at random) and kills the
orchestrator, the keeper, the emulator, or all of them, at a random moment from the start of `up` to seconds later. Then
it checks by the command line, as a user would:

- ``testbed heal``: no fault is active. If the keeper lives, every port has its carrier again; if not, the fibers are
  down, as ``status`` reports, and never up without a process that watches them;
- ``testbed down``: no process, namespace, interface or folder is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[0]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
sys.path.insert(2, str(Path(__file__).resolve().parents[1] / "agents"))

from oracles import oracle

LINKS = ("north", "south")
VICTIMS = ("orchestrator", "keeper", "emulator", "all")
LONGEST_S = 4.0
"""Latest moment of a kill: `up` without agents takes half of this time."""

CHAOS = """
import random, sys
import testbed
name, seed = sys.argv[1], int(sys.argv[2])
chance = random.Random(seed)
lab = testbed.up("metro-40km", name=name, agents=False, allow_uncertified=True, driver="netns")
print("up", flush=True)
FAULTS = [
    ("cut", "north", {}), ("cut", "south", {}), ("cut", "north:west", {}), ("cut", "south", {"carrier": "silent"}),
    ("flap", "north", {"down": "30ms", "up": "30ms"}), ("impair", "south", {"delay": "3ms", "loss": "1%"}),
    ("brown-out", "north", {"loss": "20%", "over": "1s"}), ("latency-step", "south", {"extra": "1ms", "gap": "50ms"}),
    ("gateway-down", "east", {}), ("power-loss", "west", {}), ("management-partition", "east", {}),
    ("mtu-black-hole", "north", {}),
]
active = []
while True:
    if active and chance.random() < 0.45:
        active.pop(chance.randrange(len(active))).heal()
    else:
        fault, target, parameters = chance.choice(FAULTS)
        for_s = chance.choice([None, 0.2, 1.0])
        injected = lab.inject(fault, target, for_s=for_s, **parameters)
        if for_s is None:
            active.append(injected)
"""


class Left(AssertionError):
    """A leftover, or something in a wrong state."""


def testbed(*words: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "testbed", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)


def one_round(name: str, seed: int, state: Path) -> str:
    """Kill once and check what remains; return what was killed, and when. Raises Left."""
    chance = random.Random(seed)
    environment = {**os.environ, "TESTBED_STATE": str(state), "TESTBED_DRIVER": "netns"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path[:3])
    victim, moment_s = chance.choice(VICTIMS), chance.uniform(0.05, LONGEST_S)
    began = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-c", CHAOS, name, str(seed)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(moment_s)
        what = f"seed {seed}: {victim} killed after {time.monotonic() - began:.2f} s"
        if child.poll() is not None:
            raise Left(f"{what}: the orchestrator had ended by itself: {child.communicate()[1].decode()[-500:]}")
        keepers = oracle.keeper_pids(name, state)
        pids = {
            "orchestrator": [child.pid],
            "keeper": keepers,
            "emulator": oracle.emulator_pids(name),
            "all": [child.pid, *keepers, *oracle.emulator_pids(name)],
        }[victim]
        oracle.kill(pids)
    finally:
        child.kill()
        child.communicate()
    after(name, state, environment, what)
    return what


def after(name: str, state: Path, environment: dict[str, str], what: str) -> None:
    """Check what a user finds after the kill, and what is left after `down`."""
    folder = state / "labs" / name
    with contextlib.suppress(AssertionError):  # a keeper takes its lab down if the process that builds it was killed
        oracle.until(lambda: not folder.exists() or _state(folder) in ("up", "kept"), 5.0, "the lab is up or gone")
    if _state(folder) == "up":
        healed = testbed("heal", "-l", name, environment=environment)
        if healed.returncode not in (0, 3):
            raise Left(f"{what}: heal ended with status {healed.returncode}: {healed.stderr}")
        status = testbed("status", "-l", name, "--json", environment=environment)
        if folder.exists() and status.returncode == 0:
            active = [fault for link in json.loads(status.stdout)["links"] for fault in link["faults"]]
            if active:
                raise Left(f"{what}: faults still active after heal: {active}")
        emulated = bool(oracle.emulator_pids(name)) and bool(oracle.keeper_pids(name, state))

        def carriers() -> set[bool]:
            return {
                not oracle.no_carrier(oracle.netns(name, gateway), link)
                for gateway in ("east-gw", "west-gw")
                for link in LINKS
            }

        try:
            oracle.until(lambda: carriers() == {emulated}, 5.0, "")
        except AssertionError:
            raise Left(
                f"{what}: carriers are {carriers()}, while the fibers are {'' if emulated else 'not '}emulated"
            ) from None
    down = testbed("down", name, environment=environment)
    if down.returncode != 0:
        raise Left(f"{what}: down ended with status {down.returncode}: {down.stderr}")
    if left := oracle.left_behind(name, state):
        raise Left(f"{what}: left behind: {left}")


def _state(folder: Path) -> str:
    try:
        lines = (folder / "journal.jsonl").read_text().splitlines()
    except OSError:
        return ""
    states = [json.loads(line)["state"] for line in lines if line.startswith('{"state"')]
    return states[-1] if states else "building"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", action="store_true", help="kill runs of experiments rather than labs without agents")
    asked = parser.parse_args()
    state = Path(tempfile.mkdtemp(prefix="kills"))
    state.chmod(0o711)  # programs without privileges enter it
    if asked.runs:
        import killed_runs

        round_of = killed_runs.one_run
    else:
        round_of = one_round
    for number in range(asked.count):
        try:
            print(round_of(f"kills{os.getpid()}", asked.seed * 1_000_000 + number, state), flush=True)
        except AssertionError as left:  # Left of this module, or of the copy imported by killed_runs
            print(f"{left}\nthe state is kept for inspection: TESTBED_STATE={state}", file=sys.stderr)
            return 1
    shutil.rmtree(state)
    print(f"{asked.count} kills: no leftovers, no port in a wrong state")
    return 0


if __name__ == "__main__":
    sys.exit(main())
