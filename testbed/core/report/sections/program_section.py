"""The steps of a launched program in its report: how they were read and what they tell, or how they could be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.core.analysis.program_evidence import ProgramEvidence
from testbed.core.fields import Fields, mapping, text
from testbed.core.records.run_info import RunInfo
from testbed.core.report import formats
from testbed.core.workload import step_lines
from testbed.core.workload.progress_lines import LineParser
from testbed.core.workload.progress_presets import PRESETS
from testbed.core.workload.step_lines import Offer

__all__ = ["UNKNOWN_OF_PROGRAMS", "OfferLine", "ProgramSteps", "lead", "offered", "steps", "summary"]

UNKNOWN_OF_PROGRAMS = (
    "Compute and exposed communication, rank-seconds by class, the checkers and the bytes that must cross the fiber are"
    " not here: they come from records that only the testbed's own agents write."
)


@dataclass(frozen=True)
class OfferLine:
    """How the program's steps could be read: a line for its workload, and the same as an option of a launch.

    ``sample`` is a line of the output that it reads; empty where the output has none, and this is an example.
    """

    preset: str
    pattern: str
    yaml: str
    option: str
    sample: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ProgramSteps:
    """``source``: how the steps were read, in words; empty if none were. ``printing``: the ranks that print them.

    ``steps_a_print``: steps from one print to the next, usually. ``starts_s``: from the start of the first process to
    the first step that counts. ``asked``: whether the run was told where the steps are. ``unread``: why none could be
    read there, if that is known. ``offer``: how they could be read; None where they were.
    """

    source: str
    printing: tuple[int, ...]
    steps_a_print: int | None
    starts_s: float | None
    asked: bool
    offer: OfferLine | None
    unread: str = ""


def steps(info: RunInfo, found: ProgramEvidence, output: Mapping[int, Sequence[str]]) -> ProgramSteps:
    job, asked = found.job, mapping(info.workload, "progress")
    seen = bool(job.commits)
    return ProgramSteps(
        source=_source(asked) if seen else "",
        printing=found.printing if seen else (),
        steps_a_print=found.steps_a_print,
        starts_s=found.first_step_t - job.began_t if found.first_step_t and job.began_t is not None else None,
        asked=bool(asked) and asked.get("calls") is not True,
        offer=None if seen else _offer(output),
        unread=text(info.workload, "progress_unread"),
    )


def _source(asked: Fields) -> str:
    """Return where steps were read, in words; ``asked`` is the progress of run.json's workload."""
    if preset := text(asked, "preset"):
        return f"lines of the output, by the preset {preset}"
    if "line" in asked:
        return "lines of the output, by a pattern"
    if path := text(asked, "csv"):
        return f"the CSV file {path}"
    if path := text(asked, "tensorboard"):
        return f"TensorBoard's files in {path}"
    if "prometheus" in asked:
        return "the program's Prometheus endpoint"
    return "the program's calls of testbed_agents.step"


def _offer(output: Mapping[int, Sequence[str]]) -> OfferLine:
    presets = {name: lambda lines=lines: LineParser(lines).read for name, lines in PRESETS.items()}
    return _line(step_lines.offer(output, presets) or step_lines.EXAMPLE)


def _line(it: Offer) -> OfferLine:
    return OfferLine(it.preset, it.pattern, it.yaml, it.option, it.sample, it.ranks)


def lead(shown: ProgramSteps) -> str:
    """Return what the figures of the steps are made of, or why there are none."""
    if not shown.printing:
        why = "nothing that was read names a step" if shown.asked else "no option said where the program reports them"
        why = shown.unread.removeprefix("no step was read: ").rstrip(".") or why
        return (
            f"The program's steps are not known: {why}. So nothing here tells its pace or its loss, and its recovery is"
            f" told by the traffic alone. {UNKNOWN_OF_PROGRAMS}"
        )
    ranks = [str(rank) for rank in shown.printing]
    who = f"rank {ranks[0]} prints" if len(ranks) == 1 else f"all of ranks {formats.listed(ranks)} have printed"
    often = ""
    if shown.steps_a_print and shown.steps_a_print > 1:
        often = (
            f" Usually {shown.steps_a_print} steps lie between two prints: a step time is their mean, and a gap that is"
            " shorter than two prints is known only as an upper bound, at most that."
        )
    start = f" The first step came {formats.duration(shown.starts_s)} after the start." if shown.starts_s else ""
    return (
        f"Steps are read from {shown.source}. A step counts when {who} it.{often}{start} Times are from the first print"
        f" on. {UNKNOWN_OF_PROGRAMS}"
    )


def offered(shown: ProgramSteps) -> str:
    """Return the words before the offered line; empty where nothing is offered."""
    if shown.offer is None:
        return ""
    it = shown.offer
    if not it.sample:
        return (
            "No line of the output looks like a step. If the program prints one, say how; this is an example of a"
            " pattern. Without any output, call testbed_agents.step from the program."
        )
    ranks = formats.listed([str(rank) for rank in it.ranks]) if it.ranks else ""
    of = f" of rank{'s' if len(it.ranks) > 1 else ''} {ranks}" if ranks else ""
    return f"This output{of} looks like steps: {it.sample!r}. To have them measured, add:"


def summary(shown: ProgramSteps) -> str:
    """Return the offer in one line for a terminal; empty where nothing is offered, or it would be an example."""
    if shown.offer is None or not shown.offer.sample:
        return ""
    return f"steps can be read from its output: {shown.offer.yaml}, or {shown.offer.option}"
