"""The inputs of a run or a validation: all that was chosen or given before it was measured, as texts to compare.

The lab's name, the run's name and the time of day are no inputs. Neither is what the run did: a fault that was planned
is one, when it began is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from testbed.core import units
from testbed.core.analysis.job_twin import strategy_words
from testbed.core.fields import Fields, number, text
from testbed.core.physics import full_scale, parameters
from testbed.core.physics.impairment import Impairment
from testbed.core.records.run_info import RunInfo
from testbed.core.records.run_record import RunData
from testbed.core.report import capture_note, formats
from testbed.core.report.comparison.side import Input
from testbed.core.topology.model import Link, Topology
from testbed.core.validation.result import Validation

__all__ = ["FILE", "of_run", "of_validation"]

FILE = "experiment file"
"""Name of the input whose value is a whole text, of which only the lines that differ are shown."""

_MEASURED = frozenset(
    {
        "began",
        "began_t",
        "ended_in_order",
        "ended_t",
        "ends",
        "exceeded",
        "members",
        "progress_unread",
        "statuses",
    }
)
"""Records within the schedule and the workload that a run makes."""


def of_run(run: RunData) -> tuple[Input, ...]:
    """Return the inputs of a run, without those that its directory does not tell."""
    setup = (*_software(run), *_emulation(run.info), *_host(run.info, run), *_of_topology(run.topology))
    return tuple(given for given in (*setup, *_workload(run), *_experiment(run.info)) if given.value)


def of_validation(validation: Validation) -> tuple[Input, ...]:
    """Return the inputs of a validation; the libraries and their versions are its workload."""
    inputs = [
        *(Input("software", _named(name), version) for name, version in validation.versions.items()),
        Input("emulation", "driver", validation.driver),
        Input("emulation", "emulator", validation.emulator),
        *_machine(validation.machine),
        Input("topology", "topology", validation.topology),
        Input("topology", "scale", f"{validation.scale:g}" if validation.scale != 1 else ""),
        Input("workload", "suite", validation.suite),
        *(
            Input("workload", f"library {library.name}", library.version or "not installed")
            for library in validation.libraries
        ),
    ]
    return tuple(given for given in inputs if given.value)


def _machine(written: str) -> Iterator[Input]:
    """Split a validation's machine into the inputs that a run has, ``AMD EPYC, 2 cores, Linux 6.18``."""
    if match := re.fullmatch(r"(.*), (\d+) cores?, Linux (.*)", written):
        yield from (
            Input("host", name, value)
            for name, value in zip(("cpu model", "cpus", "kernel"), match.groups(), strict=True)
        )
    else:
        yield Input("host", "machine", written)


def _named(package: str) -> str:
    return "version of testbed" if package == "testbed" else f"version of {package}"


def _software(run: RunData) -> Iterator[Input]:
    yield Input("software", "version of testbed", run.info.testbed)
    versions = dict.fromkeys(job.torch for log in run.ranks for job in log.jobs if job.torch)
    yield Input("software", "version of torch", ", ".join(versions))


def _emulation(info: RunInfo) -> Iterator[Input]:
    yield Input("emulation", "driver", info.driver)
    yield Input("emulation", "emulator", info.emulator)
    for name, value in _flat(info.scheduling):
        yield Input("emulation", f"scheduling of {name}", value)
    yield Input("emulation", "uncertified fibers allowed", "yes" if info.uncertified else "")
    yield Input("emulation", "noisy host", "yes" if info.noisy_host else "")
    yield Input("emulation", "packets captured meanwhile", ", ".join(capture_note.whose(info)))


def _host(info: RunInfo, run: RunData) -> Iterator[Input]:
    # An old run.json has nothing of the host; the certificate may.
    recorded = info.host or (run.certificate.host if run.certificate else {})
    for name, value in _flat(recorded):
        yield Input("host", name, value)


def _of_topology(topology: Topology | None) -> Iterator[Input]:
    if topology is None:
        return
    yield Input("topology", "topology", topology.name)
    yield Input("topology", "scale", f"{topology.scale:g}")
    yield Input("topology", "sites", ", ".join(f"{site.name} ({site.nodes} nodes)" for site in topology.sites))
    shared = {power for site in topology.sites if (power := site.power) != site.name}
    yield Input(
        "topology", "power domains", ", ".join(f"{site.name} on {site.power}" for site in topology.sites if shared)
    )
    for site in topology.sites:
        if site.fabric_bps:
            rate = full_scale.written(site.fabric_bps, topology.scale)
            yield Input("topology", f"fabric of {site.name}", f"{rate}, oversubscription {site.oversubscription:g}")
    yield Input("topology", "routing", topology.routing)
    yield Input("topology", "congestion control", topology.congestion)
    yield Input("topology", "seed of losses", str(topology.seed))
    for link in topology.links:
        for name, value in _of_link(link, topology.scale):
            yield Input("topology", f"link {link.name}, {name}", value)


def _of_link(link: Link, scale: float) -> Iterator[tuple[str, str]]:
    yield "between", " – ".join(link.between)
    yield "length", units.format_length(link.length_m)
    yield "ducts", ", ".join(duct for duct in link.via if duct != link.name)
    yield "fiber", link.fiber
    yield "optics", f"{link.optics}, {link.waves} waves" if link.waves != 1 else link.optics
    yield "one-way delay", units.format_delay(link.delay_s)
    yield "rate", full_scale.stands_for(link.rate_bps, scale)
    yield "queue", units.format_size(link.queue_bytes)
    yield "loss", units.format_probability(link.loss)
    yield "MTU", str(link.mtu)
    yield "protection", link.protection
    yield "calibrated", "yes" if link.calibrate else "no"
    for direction in link.directions:
        yield f"toward {direction.rpartition(':')[2]}", _impaired(link, direction, scale)


def _impaired(link: Link, direction: str, scale: float) -> str:
    """Return what a direction has beyond the link's own values, as users write it; empty if nothing."""
    impairment, bare = link.impairment(direction), Impairment(link.delay_s, link.rate_bps, link.queue_bytes, link.loss)
    values = []
    for key, parameter in parameters.PARAMETERS.items():
        value = getattr(impairment, parameter.field)
        if value != getattr(bare, parameter.field):
            values.append(
                f"{key}={full_scale.stands_for(value, scale) if key == 'rate' else parameters.text(key, value)}"
            )
    return " ".join(values)


def _workload(run: RunData) -> Iterator[Input]:
    for name, value in _flat({key: value for key, value in run.info.workload.items() if key not in _MEASURED}):
        yield Input("workload", name, value)
    jobs = [log.jobs[0] for log in run.ranks if log.jobs]
    if not jobs:
        return
    yield Input("workload", "ranks", str(jobs[0].world_size))
    yield Input("workload", "strategy", strategy_words(run.ranks))
    if declared := number(jobs[0].compute, "seconds"):
        yield Input("workload", "compute", f"declared: {formats.duration(declared)} a step")
    yield Input("workload", "model parameters", "" if jobs[0].parameters is None else str(jobs[0].parameters))
    yield Input("workload", "data", jobs[0].corpus)
    yield Input("workload", "collectives", jobs[0].algorithm)


def _experiment(info: RunInfo) -> Iterator[Input]:
    yield Input("experiment", "experiment", text(info.experiment, "name"))
    written = (line.partition("# ")[0].rstrip() for line in text(info.experiment, "text").splitlines())
    yield Input("experiment", FILE, "\n".join(line for line in written if line and not line.startswith("#")))
    for index, line in enumerate(info.schedule, 1):
        yield Input("experiment", f"planned fault {index}", _planned(line))
    for condition in info.hypothesis:
        yield Input("experiment", f"steady state, {condition.when}: {condition.text}", "asked")
    for expectation in info.expectations:
        yield Input("experiment", f"expected: {expectation.text}", "asked")


def _planned(line: Fields) -> str:
    """Return a line of the schedule: ``cut north, after step 125, for 5 s``."""
    details = {key: value for key, value in line.items() if key not in _MEASURED | {"inject", "target"}}
    if details.get("repeat") == 1:
        del details["repeat"]
    times = {"every": number(details, "every_s") or None, "for": number(details, "lasts_s")}
    details = {key: value for key, value in details.items() if key not in ("lasts_s", "every_s")}
    lasting = [f"{word} {formats.duration(seconds)}" for word, seconds in times.items() if seconds is not None]
    title = " ".join(filter(None, (text(line, "inject"), text(line, "target"))))
    return ", ".join([title, *(f"{name} {value}" for name, value in _flat(details)), *lasting])


def _flat(values: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield names, without underscores, and texts of values at any depth; what is None or empty is left out."""
    for key, value in values.items():
        name = f"{above}{key}" if "." in key else f"{above}{key.replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from _flat(value, "" if key in ("sysctls", "parameters") else f"{name} ")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield name, ", ".join(map(str, value))
        elif value is not None and value != "":
            yield name, str(value)
