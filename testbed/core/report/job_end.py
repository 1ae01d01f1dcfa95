"""Why a job that died did not come back, in one sentence: the outage or fault that stopped it, before a library's words
for what it saw of it."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.core.analysis.goodput import JobEvidence
from testbed.core.analysis.outage import Outage, longest_outage
from testbed.core.fields import number
from testbed.core.records.run_record import RunData
from testbed.core.report import formats
from testbed.core.report.sections.faults_section import Fault

__all__ = ["sentence"]

_NAMED = 3


def sentence(run: RunData, job: JobEvidence, faults: Sequence[Fault]) -> str:
    """Return the sentence; empty if the job did not die, or died without a fault."""
    if not job.died or job.ended_t is None or job.seen_t is None:
        return ""
    standing = [it for it in faults if it.gap_open]
    if not standing or not job.commits:
        return ""
    last = job.commits[-1]
    stopped = f"Training stopped after step {last.step} and did not come back"
    if run.topology is not None:
        outage = longest_outage(run.events, run.topology, last.t, job.ended_t, job.seen_t)
        if outage is not None:
            links = [link.name for link in run.topology.links]
            return f"{stopped}: {_outage(outage, links, number(run.info.workload, 'timeout_s'), job.seen_t)}."
    named = [f"{it.named} at {formats.duration(it.began_s)}" for it in standing[:_NAMED]]
    more = len(standing) - len(named)
    also = f" and {formats.plural(more, 'more fault')}" if more else ""
    why = f": {run.info.reason.rstrip('.')}" if run.info.reason else ""
    return f"{stopped} after {' and '.join(named)}{also}{why}."


def _outage(outage: Outage, links: Sequence[str], timeout_s: float | None, seen_t: float) -> str:
    lasted_s = (seen_t if outage.ended_t is None else outage.ended_t) - outage.began_t
    said = f"{_fibers(outage.links, links)} dark for"
    if timeout_s is None:
        return f"{said} {formats.duration(lasted_s)}"
    timeout = f"the group's timeout of {formats.duration(timeout_s)}"
    if lasted_s >= timeout_s:
        return f"{said} longer than {timeout}"
    return f"{said} {formats.duration(lasted_s)}, and no data came through within {timeout}"


def _fibers(dark: Sequence[str], links: Sequence[str]) -> str:
    if len(dark) < len(links):
        return f"the sites were not connected, with {formats.listed(dark)}"
    if len(links) == 1:
        return f"the only fiber, {links[0]}, was"
    return "both fibers were" if len(links) == 2 else f"all {len(links)} fibers were"
