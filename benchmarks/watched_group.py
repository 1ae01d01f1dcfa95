"""What a job costs its ranks beyond a bare torch script that trains the same: CPU and time of a step.

    python -m benchmarks.watched_group [--pairs 10] [--steps 50] [--lab metro-40km | --loopback] [--asleep 50ms ...]

Each pair trains the same model twice, one after the other, from fresh processes: by ``benchmarks/bare_training.py``
(torch alone) and by the agents' trainer with all that it does in a job (watched group, records, checks, board, metrics,
scraped once a second, TCP_INFO). Both must end with the same parameters, bit for bit. CPU seconds are getrusage(2)'s of
the ranks, all threads, from the end of the first steps, which warm up, to the end of the last one. Printed as JSON:
medians over the pairs, of the mean over ranks, and the median of the paired ratios. With a lab, ranks run in its nodes
(root); processes are forked from one that has imported torch, as the fork server's are.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from testbed_agents import fork_server, namespaces

import testbed
from benchmarks.common import exit_on_sigterm, load, machine
from benchmarks.cost_place import METRICS_PORT, WARM_UP, Place
from testbed.core.plan.addressing import FABRIC_INTERFACE, Addressing, namespace_name

PORTS = iter(range(29600, 31000))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watched_group", description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=50, help="steps of a run that count (default: 50)")
    parser.add_argument("--lab", default="", help="topology whose nodes the ranks run in, as metro-40km")
    parser.add_argument("--ranks", type=int, default=2, help="ranks over loopback, without --lab (default: 2)")
    parser.add_argument("--asleep", type=float, default=0.0, help="declared seconds of a step of 1.3 M parameters")
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--profile", action="store_true", help="also profile the trainer's thread of rank 0")
    words = parser.parse_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as name, _places(words) as places:
        folder = Path(name)
        folder.chmod(0o755)
        print(json.dumps(_measured(words, places, folder), indent=1))
    return 0


@contextlib.contextmanager
def _places(words: argparse.Namespace) -> Iterator[list[Place]]:
    if not words.lab:
        yield [Place("here", "127.0.0.1", "lo")] * words.ranks
        return
    topology = testbed.load(words.lab)
    name = f"cost{os.getpid()}"
    with testbed.up(topology, name=name, allow_uncertified=True) as lab:
        addressing = Addressing(topology)
        yield [
            Place(
                site.name,
                str(addressing.node(node)[0]),
                FABRIC_INTERFACE,
                {
                    "net": f"/run/netns/{namespace_name(lab.name, node)}",
                    **{kind: str(lab._folder.handles / node / kind) for kind in ("mnt", "uts", "ipc")},
                },
            )
            for site in topology.sites
            for node in site.node_names
        ]


def _measured(words: argparse.Namespace, places: list[Place], folder: Path) -> dict[str, Any]:
    fork_server.warm_up()  # sets the number of threads before it imports torch
    from testbed_agents.training.data import standard_library

    from benchmarks import cost_ranks

    text = folder / "text"
    text.write_bytes(standard_library().text.numpy().tobytes())
    kinds: dict[str, Callable[..., dict[str, Any]]] = {"bare": cost_ranks.bare, "job": cost_ranks.job}
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    before = load()
    for pair in range(words.pairs):
        ends = set()
        for kind in sorted(kinds, reverse=pair % 2 == 1):
            own = folder / f"{kind}{pair}"
            own.mkdir(mode=0o755)
            of_ranks = _run(kinds[kind], words, places, own, text)
            ends |= {each["parameters"] for each in of_ranks}
            found[kind].append(_per_step(of_ranks))
        if len(ends) != 1:
            raise SystemExit(f"expected the same parameters at all ranks and of both kinds, got {sorted(ends)}")
        print(f"pair {pair + 1}: {found['bare'][-1]}, {found['job'][-1]}", file=sys.stderr, flush=True)
    result: dict[str, Any] = {
        "machine": machine(),
        "load": [before, load()],
        "ranks": len(places),
        "lab": words.lab or "loopback",
        "pairs": words.pairs,
        "steps": words.steps,
        "asleep_s": words.asleep,
        "buckets": words.buckets,
    }
    for what in ("cpu_ms", "wall_ms"):
        of = {kind: [each[what] for each in runs] for kind, runs in found.items()}
        ratios = [job / bare for job, bare in zip(of["job"], of["bare"], strict=True)]
        extra = [job - bare for job, bare in zip(of["job"], of["bare"], strict=True)]
        result[what] = {kind: round(statistics.median(values), 3) for kind, values in of.items()}
        result[what]["extra"] = round(statistics.median(extra), 3)
        result[what]["ratio"] = round(statistics.median(ratios), 4)
        result[what]["ratios"] = [round(each, 4) for each in ratios]
    step_ms = statistics.median(each["wall_ms"] for each in found["job"])
    result["extra_cpu_share_of_step"] = round(result["cpu_ms"]["extra"] / step_ms, 4)
    return result


def _per_step(of_ranks: list[dict[str, Any]]) -> dict[str, float]:
    """Return means over ranks, in ms a step: CPU, and the median of the steps' durations."""
    cpu, wall = [], []
    for each in of_ranks:
        steps = each["steps"][WARM_UP - 1 :]
        cpu.append((steps[-1][1] - steps[0][1]) / (len(steps) - 1))
        wall.append(statistics.median(b[0] - a[0] for a, b in itertools.pairwise(steps)))
    return {"cpu_ms": 1e3 * statistics.fmean(cpu), "wall_ms": 1e3 * statistics.fmean(wall)}


def _run(
    function: Callable[..., dict[str, Any]], words: argparse.Namespace, places: list[Place], folder: Path, text: Path
) -> list[dict[str, Any]]:
    """Run ``function`` on all ranks; return what they returned."""
    port = next(PORTS)
    pids = [
        _forked(place, _rank, function, words, places, rank, port, folder, text) for rank, place in enumerate(places)
    ]
    scrapers = [_forked(place, _scrape, METRICS_PORT + rank) for rank, place in enumerate(places)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    for pid in scrapers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if any(codes):
        raise SystemExit(f"ranks ended with {codes}")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(places))]


def _forked(place: Place, function: Callable[..., None], *arguments: Any) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(2, 1)  # stdout has the result alone
            namespaces.enter(place.namespaces)
            function(*arguments)
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return pid


def _rank(
    function: Callable[..., dict[str, Any]],
    words: argparse.Namespace,
    places: list[Place],
    rank: int,
    port: int,
    folder: Path,
    text: Path,
) -> None:
    found = function(words, places, rank, port, folder, text)
    (folder / f"{rank}.json").write_text(json.dumps(found))


def _scrape(port: int) -> None:
    """Read /metrics once a second, as a run does; a rank of the bare script has none."""
    while True:
        time.sleep(1.0)
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=0.8).read()


if __name__ == "__main__":
    sys.exit(main())
