"""Verbs about faults of a live lab: inject, cut, heal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import console, verb
from testbed.cli.verb import AnyTargetArgument, AsJson, FaultArgument, LabName, Lasting, TargetArgument
from testbed.core.units import format_duration
from testbed.errors import UnknownName, UserError

if TYPE_CHECKING:
    from testbed.lab.api import Fault

MOMENT_S = 0.01
"""A fault that lasts less is over when its line is read."""


def _show_fault(fault: Fault) -> None:
    began = time.strftime("%H:%M:%S", time.localtime(fault.began_unix_s))
    words = f"{fault.id}: {fault.type} {fault.target}, began {began}"
    if fault.ended is not None:
        words += f", lasted {fault.ended - fault.began:.3f} s"
    console.show(words)


def _fault_as_data(fault: Fault) -> dict[str, object]:
    return {key: getattr(fault, key) for key in ("id", "type", "target", "began", "ended", "began_unix_s")}


def _inject(
    lab: str | None, fault: str, target: str, lasting: str | None, wait: bool, parameters: dict[str, str], as_json: bool
) -> None:
    from testbed.core.faults.fault_registry import registry

    for_s = _repair_s(parameters) if lasting == "repair" else verb.read_duration_s(lasting)
    kind = registry().get(fault)
    if wait and for_s is None and not (kind and kind.ending & parameters.keys()):
        raise UserError("--wait waits for the fault to end: say for how long with --for, as in --for 10s --wait")
    if taken := {"for_s", "wait"} & parameters.keys():
        raise UnknownName(f"{fault} parameter", min(taken))
    made = verb.attach(lab).inject(fault, target, for_s=for_s, wait=wait, **parameters)
    if as_json:
        console.show_json(_fault_as_data(made))
        return
    _show_fault(made)
    if made.ended is None:
        lasts_s = made.lasts_s or for_s
        if lasts_s and lasts_s < MOMENT_S:
            words = "it is over at once"
        elif lasts_s:
            words = f"it ends by itself after {format_duration(lasts_s)}"
        else:
            words = f"to end it: testbed heal {made.id}"
        console.say(words, style="dim")


def _repair_s(parameters: dict[str, str]) -> float:
    """How long the repair of the fault's cause usually takes, an hour of it in a second."""
    from testbed.core.faults import causes

    if "cause" not in parameters:
        raise UserError(f"--for repair needs a cause, as in cause=excavator; there is {', '.join(causes.CAUSES)}")
    try:
        return causes.repair_s(causes.parse_cause(parameters["cause"]))
    except ValueError as error:
        raise UserError(str(error)) from error


Wait = Annotated[bool, typer.Option("--wait", help="Return when it has ended.", show_default=False)]


@verb.verb(
    verb.FAULTS,
    "testbed inject cut north --for 10s --wait",
    "testbed inject impair north:west delay=5ms loss=0.1% burst=8",
    "testbed inject cut north:west carrier=silent",
    "testbed inject flap north down=200ms up=800ms times=10 --wait",
    "testbed inject latency-step north extra=1ms gap=50ms",
    "testbed inject brown-out north:west loss=5% over=10s",
    "testbed inject cut north cause=excavator --for repair",
    "testbed ls faults                          # those there are, with their parameters",
)
def inject(
    fault: FaultArgument,
    target: AnyTargetArgument,
    parameters: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Of this kind of fault.", show_default=False)
    ] = None,
    for_: Lasting = None,
    wait: Wait = False,
    lab: LabName = None,
    as_json: AsJson = False,
) -> None:
    """Do something to a fiber, a rank or a place; prints the fault's id, by which it is healed."""
    given: dict[str, str] = {}
    for word in parameters or ():
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise UserError(f"'{word}' is no KEY=VALUE; write for example delay=5ms")
        if key in ("fault", "target", "for_s", "wait"):
            raise UserError(f"'{key}' is no parameter of a fault; a time limit is --for")
        if key in given:
            raise UserError(f"{key} is given twice, as {given[key]} and as {value}; keep one")
        given[key] = value
    _inject(lab, fault, target, for_, wait, given, as_json)


@verb.verb(
    verb.FAULTS,
    "testbed cut north",
    "testbed cut north --for 10s",
    "testbed cut north:west                      # one direction: west sees no carrier, east does",
    "testbed cut river-bridge                    # every link in the duct",
)
def cut(
    target: TargetArgument, for_: Lasting = None, wait: Wait = False, lab: LabName = None, as_json: AsJson = False
) -> None:
    """Cut a link or a duct: both gateways see no carrier, what was in flight is lost (= inject cut).

    Of one direction only its receiver loses the carrier, and does not send any more.
    """
    _inject(lab, "cut", target, for_, wait, {}, as_json)


@verb.verb(
    verb.FAULTS, "testbed heal                               # everything", "testbed heal north", "testbed heal f3"
)
def heal(
    what: Annotated[str | None, typer.Argument(metavar="[ID|LINK]", help="[default: all faults]")] = None,
    lab: LabName = None,
    as_json: AsJson = False,
) -> None:
    """End a fault, all faults of a link, or all there are."""
    ended = verb.attach(lab).heal(what)
    if as_json:
        console.show_json([_fault_as_data(fault) for fault in ended])
        return
    for fault in ended:
        _show_fault(fault)
    if not ended:
        console.say("nothing was to be healed")
