"""Verbs for faults in a running lab: inject, cut, heal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import verb
from testbed.cli.console import Note
from testbed.cli.options import REPAIR, AnyTargetArgument, AsJson, FaultArgument, LabName, Lasting, TargetArgument
from testbed.cli.verb import Result
from testbed.core.units import format_duration
from testbed.errors import UnknownName, UserError

if TYPE_CHECKING:
    from testbed.lab.api import Fault

MOMENT_S = 0.01
"""A shorter fault has ended by the time its line is read."""


def _fault_line(lab: str, fault: Fault) -> str:
    began = time.strftime("%H:%M:%S", time.localtime(fault.began_unix_s))
    lasted = "" if fault.ended is None else f", lasted {fault.ended - fault.began:.3f} s"
    return f"{lab}: {fault.id}: {fault.type} {fault.target}, began {began}{lasted}"


def _fault_as_data(lab: str, fault: Fault) -> dict[str, object]:
    keys = ("id", "type", "target", "began", "ended", "began_unix_s")
    return {"lab": lab, **{key: getattr(fault, key) for key in keys}}


def _inject(
    lab: str | None,
    fault: str,
    target: str,
    lasting: float | None,
    wait: bool,
    parameters: dict[str, str],
) -> Result:
    from testbed.core.faults.fault_registry import registry

    for_s = _repair_s(parameters) if lasting == REPAIR else lasting
    kind = registry().get(fault)
    if wait and for_s is None and not (kind and kind.ending & parameters.keys()):
        raise UserError("--wait needs a fault that ends by itself; add a duration, e.g. --for 10s --wait")
    if reserved := {"for_s", "wait"} & parameters.keys():
        raise UnknownName(f"{fault} parameter", min(reserved))
    where = verb.attach_to_change(lab)
    injected = where.inject(fault, target, for_s=for_s, wait=wait, **parameters)
    hints = [] if injected.ended is not None else [Note(_end_of(injected, for_s, lab, where.name))]
    return Result(data=lambda: _fault_as_data(where.name, injected), tables=[_fault_line(where.name, injected), *hints])


def _end_of(fault: Fault, for_s: float | None, typed_lab: str | None, lab: str) -> str:
    """Return when a fault ends, or how to end it."""
    from testbed.host import lab_owner

    lasts_s = fault.lasts_s or for_s
    if lasts_s and lasts_s < MOMENT_S:
        return "it ends at once"
    if lasts_s:
        return f"it ends by itself after {format_duration(lasts_s)}"
    on = ("-l", typed_lab) if typed_lab else lab_owner.flag(lab)
    return f"end it with: {invocation.command('heal', fault.id, *on)}"


def _repair_s(parameters: dict[str, str]) -> float:
    """Return the usual repair time of the fault's cause, compressed to one second per hour."""
    from testbed.core.faults import causes

    if "cause" not in parameters:
        raise UserError(f"--for repair needs a cause, e.g. cause=excavator (available: {', '.join(causes.CAUSES)})")
    try:
        return causes.repair_s(causes.parse_cause(parameters["cause"]))
    except ValueError as error:
        raise UserError(str(error)) from error


Wait = Annotated[bool, typer.Option("--wait", help="Return when the fault has ended.", show_default=False)]


@verb.verb(
    verb.FAULTS,
    "testbed inject cut north --for 10s --wait",
    "testbed inject impair north:west delay=5ms loss=0.1% burst=8",
    "testbed inject cut north:west carrier=silent",
    "testbed inject flap north down=200ms up=800ms times=10 --wait",
    "testbed inject latency-step north extra=1ms gap=50ms",
    "testbed inject brown-out north:west loss=5% over=10s",
    "testbed inject cut north cause=excavator --for repair",
    "testbed ls faults                          # kinds of fault and their parameters",
)
def inject(
    fault: FaultArgument,
    target: AnyTargetArgument,
    parameters: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Parameters of the fault.", show_default=False)
    ] = None,
    for_: Lasting = None,
    wait: Wait = False,
    lab: LabName = None,
    as_json: AsJson = False,
) -> Result:
    """Inject a fault into a link, rank, node or site; prints the fault's id for testbed heal."""
    given: dict[str, str] = {}
    for parameter in parameters or ():
        key, equals, value = parameter.partition("=")
        if not key or not equals:
            raise UserError(f"expected KEY=VALUE, got '{parameter}'; write for example delay=5ms")
        if key in ("fault", "target", "for_s", "wait"):
            raise UserError(f"'{key}' is not a fault parameter; set a duration with --for")
        if key in given:
            raise UserError(f"{key} is given twice ({given[key]} and {value}); keep one")
        given[key] = value
    return _inject(lab, fault, target, for_, wait, given)


@verb.verb(
    verb.FAULTS,
    "testbed cut north",
    "testbed cut north --for 10s",
    "testbed cut north:west                      # one direction: only west loses its carrier",
    "testbed cut river-bridge                    # every link in the duct",
)
def cut(
    target: TargetArgument, for_: Lasting = None, wait: Wait = False, lab: LabName = None, as_json: AsJson = False
) -> Result:
    """Cut a link or a duct: both gateways lose their carrier, packets in flight are lost (= inject cut).

    If one direction is cut, only its receiver loses the carrier and stops sending.
    """
    return _inject(lab, "cut", target, for_, wait, {})


@verb.verb(
    verb.FAULTS, "testbed heal                               # everything", "testbed heal north", "testbed heal f3"
)
def heal(
    what: Annotated[
        str | None, typer.Argument(metavar="[ID|LINK]", help="A fault's id or target, a link, a node (default: all).")
    ] = None,
    lab: LabName = None,
    as_json: AsJson = False,
) -> Result:
    """End one fault, all faults of a target, link or node, or all faults of the lab."""
    where = verb.attach_to_change(lab)
    ended = where.heal(what)
    trouble = where.without_keeper()  # otherwise a lab whose fibers stay dark would pass for a healed one
    lines = [_fault_line(where.name, fault) for fault in ended]
    return Result(
        data=lambda: [_fault_as_data(where.name, fault) for fault in ended],
        tables=lines or [Note(f"{where.name}: no active faults", "")],
        notes=[Note(trouble, "")] if trouble else [],
    )
