"""Certificates on a noisy host: how labs come up, and whether wrong fibers are detected, while a thief takes CPU time.

::

    python -m benchmarks.noise                                    # as root; make bench-noise; hours
    python -m benchmarks.noise --ups 10 --levels 0,15 --only ups --seconds 100
    python -m benchmarks.noise --table                            # of the samples so far
    python -m benchmarks.noise --table --write docs/certificate.md

Series, each at levels 0, 5, 15 and 25 % and in both modes of benchmarks/thief.py: ``ups`` of metro-40km without agents,
``agents`` (metro-40km with agents), ``ring`` (eight sites). ``runs`` of metro-40km are at 15 %. ``planted`` brings up a
lab, sets wrong values of one direction below the keeper (tests/planted_fibers.py) and certifies it, at 0, 5 and 15 %.

Every sample is a line of build/noise/SERIES.jsonl, with the share of CPU time that other guests took meanwhile (steal).
A second call adds missing samples. Samples come in batches under one thief; a batch is dropped if its level was not
held. After a change of the certification, use another folder (``--out``).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, exit_on_sigterm, machine, percentile, ring, topology_text
from benchmarks.thief import MODES, Void, may_steal, thief

sys.path.insert(0, str(ROOT / "tests"))
from planted_fibers import WRONG, second_path, site_network, wrong_fiber

Sample = dict[str, Any]

LEVELS = (0, 5, 15, 25)
"""Percent of each core's time."""
COMMAND = (sys.executable, "-m", "testbed")
BOUND_S = 600.0
MOST_VOID = 5
"""The benchmark ends after this many batches in a row that did not hold their level."""
BYPASS = "a path around a fiber"
LOSSY = ("metro-40km", "--set", "links.south.loss=1%")
BEGIN, END = "<!-- begin of the tables of make bench-noise -->", "<!-- end of the tables of make bench-noise -->"
OUTCOMES = ("outside tolerance", "not measurable", "failed", "certified, noisy host", "certified")


@dataclass(frozen=True)
class Series:
    """``batch`` takes (lab name, number of samples) and yields samples, under one thief."""

    samples: int
    levels: tuple[int, ...]
    batch_size: int
    batch: Callable[[Bench, int], Generator[Sample, None, None]]


@dataclass(frozen=True)
class Bench:
    """The folder with the state and the runs of labs, and the ring's topology; the name of the lab."""

    folder: Path
    lab: str

    @property
    def environment(self) -> dict[str, str]:
        folders = {"TESTBED_STATE": str(self.folder / "state"), "TESTBED_RUNS": str(self.folder / "runs")}
        return os.environ | folders | {"PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}", "TESTBED_DRIVER": "netns"}

    def testbed(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv, folder = [*COMMAND, *words], self.folder
        try:
            return subprocess.run(
                argv, env=self.environment, cwd=folder, capture_output=True, text=True, timeout=BOUND_S
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 124, "", f"did not end within {BOUND_S:g} s")

    @contextmanager
    def down(self) -> Iterator[None]:
        """Take the lab down at the end of the block, if there is one."""
        try:
            yield
        finally:
            self.testbed("down", self.lab)

    def up(self, *words: str) -> Sample:
        """Bring a lab up and take it down; return the sample."""
        with self.down():
            began, busy = time.monotonic(), cpu_times()
            done = self.testbed("up", *words, "--name", self.lab, "--emulator", "fiberd", "--json")
            sample: Sample = {"seconds": round(time.monotonic() - began, 3), "steal": round(steal_since(busy), 4)}
        if done.returncode:
            return sample | {"outcome": _refused(done), "status": done.returncode, "stderr": done.stderr[-3000:]}
        certificate = json.loads(done.stdout)["certificate"]
        directions = [measured for link in certificate["links"] for measured in link["directions"]]
        return sample | {
            "outcome": certificate["verdict"],
            "status": 0,
            "tries": max(max(measured["tries"].values()) for measured in directions),
            "free": certificate["headroom"]["free"],
        }


def _refused(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode == 1 and "outside tolerance" in done.stderr:
        return "outside tolerance"
    return "not measurable" if done.returncode == 3 and "not measurable" in done.stderr else "failed"


def cpu_times() -> list[int]:
    """Return the ticks of all cores together (proc_stat(5))."""
    return [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def steal_since(before: Sequence[int]) -> float:
    """Return the share of all cores' time that other guests took since ``before``."""
    spent = [now - then for now, then in zip(cpu_times(), before, strict=True)]
    return spent[7] / max(1, sum(spent))


# ---- batches


def ups(bench: Bench, samples: int) -> Generator[Sample, None, None]:
    for _ in range(samples):
        yield bench.up("metro-40km", "--no-agents")


def ups_with_agents(bench: Bench, samples: int) -> Generator[Sample, None, None]:
    for _ in range(samples):
        yield bench.up("metro-40km")


def ups_of_ring(bench: Bench, samples: int) -> Generator[Sample, None, None]:
    file = bench.folder / "ring-8.yaml"
    file.write_text(topology_text(8, 1, ring(8)))
    for _ in range(samples):
        yield bench.up(str(file), "--no-agents")


def runs(bench: Bench, samples: int) -> Generator[Sample, None, None]:
    for _ in range(samples):
        with bench.down():
            began, busy = time.monotonic(), cpu_times()
            done = bench.testbed("run", "metro-40km", "--name", bench.lab)
            sample: Sample = {"seconds": round(time.monotonic() - began, 3), "steal": round(steal_since(busy), 4)}
        sample |= {"outcome": "failed" if done.returncode else "passed", "status": done.returncode}
        if done.returncode:
            sample["output"] = (done.stdout + done.stderr)[-3000:]
        yield sample
        shutil.rmtree(bench.folder / "runs", ignore_errors=True)


def planted(bench: Bench, samples: int) -> Generator[Sample, None, None]:
    """Certify a lab ``samples`` times with each wrong fiber."""
    with bench.down():
        up = ("up", *LOSSY, "--name", bench.lab, "--emulator", "fiberd", "--no-agents", "--allow-uncertified", "--json")
        done = bench.testbed(*up)
        if done.returncode:
            raise Void(f"no lab came up (status {done.returncode}): {done.stderr[-2000:]}")
        for _ in range(samples):
            for wrong in (*WRONG, BYPASS):
                with ExitStack() as stack:
                    is_named = _plant(bench, wrong, stack)
                    busy = cpu_times()
                    done = bench.testbed("certify", "-l", bench.lab, "--json")
                sample: Sample = {"wrong": wrong, "status": done.returncode, "steal": round(steal_since(busy), 4)}
                if done.stdout:
                    certificate = json.loads(done.stdout)
                    outcome, why = certificate["verdict"], certificate["why"]
                    yield sample | {"outcome": outcome, "named": is_named(certificate), "why": why}
                else:
                    yield sample | {"outcome": "failed", "named": False, "stderr": done.stderr[-3000:]}


def _plant(bench: Bench, wrong: str, stack: ExitStack) -> Callable[[Sample], bool]:
    """Plant a wrong fiber until ``stack`` closes; return whether a certificate names it."""
    if wrong == BYPASS:
        route = ("west-gw", site_network(bench.lab, "east", "inet6"), "fd00:bad::2")
        stack.enter_context(second_path(bench.lab, "west-gw", "east-gw", route))
        return lambda certificate: "west-0 reaches east-0 over IPv6" in certificate["around"]["why"]
    quantity, change = WRONG[wrong]
    direction = "south:east" if quantity == "loss" else "north:west"
    stack.enter_context(wrong_fiber(bench.lab, bench.folder / "state", direction, change))
    return lambda certificate: (direction, quantity) in _bad(certificate)


def _bad(certificate: Sample) -> set[tuple[str, str]]:
    """Return (direction, quantity) of all that is outside tolerance."""
    return {
        (measured["direction"], check["what"].partition(",")[0])
        for link in certificate["links"]
        for measured in link["directions"]
        for check in measured["checks"]
        if check["verdict"] == "bad"
    }


SERIES = {
    "ups": Series(100, LEVELS, 10, ups),
    "agents": Series(20, LEVELS, 5, ups_with_agents),
    "ring": Series(20, LEVELS, 5, ups_of_ring),
    "runs": Series(10, (15,), 2, runs),
    "planted": Series(20, (0, 5, 15), 1, planted),
}


# ---- measuring


def measure(name: str, level: int, mode: str, samples: int, seed: int, until: float) -> list[Sample]:
    """Take a batch of samples under one thief, none after ``until``. Raises Void if its level was not held."""
    series, batch = SERIES[name], []
    with tempfile.TemporaryDirectory(prefix="noise-") as folder:
        Path(folder).chmod(0o755)  # ranks do not run as root
        bench = Bench(Path(folder), f"noise-{os.getpid()}")
        per_sample = len(WRONG) + 2 if name == "planted" else 2  # and its down
        bound_s = min(3600.0, samples * per_sample * BOUND_S)
        with thief(level / 100, mode, bound_s, seed) as stolen, closing(series.batch(bench, samples)) as taken:
            for sample in taken:
                batch.append({"level": level, "mode": mode, **sample})
                print(f"  {len(batch)}: {_line(sample)}", flush=True)
                if time.monotonic() > until:
                    break
    head = {"machine": machine(), "taken": time.strftime("%Y-%m-%d %H:%M"), "shares": sorted(stolen.shares.values())}
    return [sample | head for sample in batch]


def _line(sample: Sample) -> str:
    fields = [sample.get("wrong"), sample["outcome"], f"status {sample['status']}"]
    fields += [f"{sample['seconds']:.1f} s"] if "seconds" in sample else []
    fields += ["not named"] if sample.get("named") is False else []
    return ", ".join(field for field in [*fields, f"steal {sample['steal']:.1%}"] if field)


def measure_all(out: Path, wanted: dict[str, int], levels: Sequence[int], until: float) -> None:
    """Add missing samples, one batch per level in turn, so that a partial result has samples of each level."""
    voids = 0
    pending = True
    while pending:
        pending = False
        for name, samples in wanted.items():
            series = SERIES[name]
            for level, mode in cells(series, levels):
                missing = samples - count(read(out, name), level, mode)
                if missing <= 0 or time.monotonic() > until:
                    continue
                size = min(missing, series.batch_size)
                print(f"{name}, {label(level, mode)}: {samples - missing} of {samples}", flush=True)
                try:
                    batch = measure(name, level, mode, size, samples - missing + 1, until)
                except Void as void:
                    voids += 1
                    print(f"  void: {void}", flush=True)
                    if voids == MOST_VOID:
                        raise
                    pending = True
                    continue
                voids = 0
                with (out / f"{name}.jsonl").open("a") as lines:
                    lines.writelines(json.dumps(sample) + "\n" for sample in batch)
                pending = pending or missing > size


def cells(series: Series, levels: Sequence[int]) -> list[tuple[int, str]]:
    """Return (level, mode) of a series; level 0 has one mode."""
    chosen = [level for level in series.levels if level in levels]
    return [(level, mode) for level in chosen for mode in (MODES if level else MODES[:1])]


def count(samples: Sequence[Sample], level: int, mode: str) -> int:
    """Return the samples of a level and mode; of planted fibers, those of the rarest kind."""
    own = [sample.get("wrong") for sample in samples if (sample["level"], sample["mode"]) == (level, mode)]
    return min(own.count(wrong) for wrong in (*WRONG, BYPASS)) if any(own) else len(own)


def read(out: Path, name: str) -> list[Sample]:
    file = out / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# ---- the table


def label(level: int, mode: str) -> str:
    return f"{level} %, {mode}" if level else "none"


def table(out: Path) -> str:
    """Return the tables of docs/certificate.md."""
    lines = [
        "| lab | CPU time taken | ups | outside tolerance | not measurable | failed otherwise | noisy host | certified"
        " | repeated | `up`, median / p95 | steal, median / most |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    titles = {"ups": "metro-40km", "agents": "metro-40km, agents", "ring": "ring of 8 sites"}
    for name, title in titles.items():
        for cell, samples in _by_cell(read(out, name)):
            outcomes = [sample["outcome"] for sample in samples]
            repeated = sum(sample.get("tries", 1) > 1 for sample in samples)
            counts = " | ".join(str(outcomes.count(outcome)) for outcome in OUTCOMES)
            times = f"{_seconds(samples)} | {_steal(samples)}"
            lines.append(f"| {title} | {cell} | {len(samples)} | {counts} | {repeated} | {times} |")
    lines += [
        "",
        "| `testbed run metro-40km` | runs | passed | median / p95 | steal, median / most |",
        "|---|---|---|---|---|",
    ]
    for cell, samples in _by_cell(read(out, "runs")):
        passed = sum(sample["outcome"] == "passed" for sample in samples)
        lines.append(f"| {cell} | {len(samples)} | {passed} | {_seconds(samples)} | {_steal(samples)} |")
    lines += [
        "",
        "| wrong fiber | CPU time taken | certificates | outside tolerance, named | outside tolerance, not named"
        " | not measurable | certified |",
        "|---|---|---|---|---|---|---|",
    ]
    for wrong in (*WRONG, BYPASS):
        for cell, samples in _by_cell([sample for sample in read(out, "planted") if sample["wrong"] == wrong]):
            outside = [sample["named"] for sample in samples if sample["outcome"] == "outside tolerance"]
            certified = sum(sample["outcome"].startswith("certified") for sample in samples)
            unmeasured = len(samples) - len(outside) - certified
            lines.append(
                f"| {wrong} | {cell} | {len(samples)} | {outside.count(True)} | {outside.count(False)} | {unmeasured}"
                f" | {certified} |"
            )
    everything = [sample for name in SERIES for sample in read(out, name)]
    lines += ["", "; ".join(sorted({f"{sample['machine']}, {sample['taken'][:10]}" for sample in everything})) + "."]
    return "\n".join(lines)


def write(file: Path, tables: str) -> None:
    """Replace what is between the marks of a page by the tables. Raises ValueError for a page without the marks."""
    before, begin, rest = file.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{file}: expected the lines {BEGIN} and {END}")
    file.write_text(f"{before}{begin}\n\n{tables}\n\n{end}{after}")


def _by_cell(samples: Sequence[Sample]) -> list[tuple[str, list[Sample]]]:
    keys = sorted({(sample["level"], sample["mode"]) for sample in samples})
    return [(label(*key), [sample for sample in samples if (sample["level"], sample["mode"]) == key]) for key in keys]


def _seconds(samples: Sequence[Sample]) -> str:
    seconds = sorted(sample["seconds"] for sample in samples)
    return f"{statistics.median(seconds):.1f} / {percentile(seconds, 0.95):.1f} s"


def _steal(samples: Sequence[Sample]) -> str:
    steal = [sample["steal"] for sample in samples]
    return f"{statistics.median(steal):.1%} / {max(steal):.1%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, series in SERIES.items():
        parser.add_argument(f"--{name}", type=int, default=series.samples, help="samples per level and mode")
    parser.add_argument("--only", action="append", choices=SERIES, help="measure only this series; may be repeated")
    parser.add_argument("--levels", default="0,5,15,25", help="percent of each core's time (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no sample after this time")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "noise", help="where the samples are")
    parser.add_argument("--table", action="store_true", help="print the tables of the samples so far; measure nothing")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="also write the tables into this page of docs/")
    arguments = parser.parse_args()
    if not arguments.table:
        available = {str(level): level for level in LEVELS}
        chosen = arguments.levels.split(",")
        if unknown := [level for level in chosen if level not in available]:
            parser.error(f"unknown level {unknown[0]!r} (available: {', '.join(available)})")
        levels = [available[level] for level in chosen]
        if os.geteuid() != 0:
            parser.error("creates network namespaces: run as root")
        if any(levels) and not may_steal():
            parser.error("a thief needs CAP_SYS_NICE")
        exit_on_sigterm()
        arguments.out.mkdir(parents=True, exist_ok=True)
        wanted = {name: getattr(arguments, name) for name in arguments.only or SERIES}
        measure_all(arguments.out, wanted, levels, time.monotonic() + arguments.seconds)
    tables = table(arguments.out)
    print(tables)
    if arguments.write:
        write(arguments.write, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
