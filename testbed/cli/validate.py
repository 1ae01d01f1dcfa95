"""The verb validate: collective libraries put to the test in a certified lab."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from testbed.cli import screen, tables, verb
from testbed.cli.verb import AllowUncertified, AsJson, Driver, Emulator, Overrides
from testbed.cli.work import RunsFolder

if TYPE_CHECKING:
    from testbed.core.conformance.baseline import Comparison
    from testbed.core.conformance.result import LibraryResult, Speed, Validation
    from testbed.lab.validate.run import Part, Suite

DEFAULT_TOPOLOGY = "metro-40km"

_GOOD_OUTCOMES = frozenset({"right", "right after healing", "error within its bound"})
_BAD_OUTCOMES = frozenset({"wrong result", "hang", "crash"})


class SuiteName(StrEnum):
    """How much is asked of a library."""

    quick = "quick"
    full = "full"


class PartName(StrEnum):
    """One part of a suite."""

    correctness = "correctness"
    speed = "speed"
    faults = "faults"


def _libraries(lab: str | None) -> Sequence[str]:
    from testbed.host import libraries

    return list(libraries.registry())


@verb.verb(
    verb.RUNS,
    "testbed validate torch-gloo                         # on metro-40km, under three minutes",
    "testbed validate torch-gloo mpich --suite full",
    "testbed validate ./my_ranks.py --only correctness   # a rank program of your own",
    "testbed validate torch-gloo --baseline old/validate.json --junit out.xml",
)
def validate(
    libraries: Annotated[
        list[str],
        typer.Argument(
            metavar="LIBRARY...",
            help="Names (testbed ls libraries), or rank programs of your own by their path.",
            autocompletion=verb.completing(_libraries),
        ),
    ],
    topology: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="The lab to bring up for it.",
            autocompletion=verb.completing(verb._topologies),
        ),
    ] = DEFAULT_TOPOLOGY,
    suite: Annotated[SuiteName, typer.Option(help="quick takes under three minutes a library.")] = SuiteName.quick,
    only: Annotated[
        list[PartName] | None, typer.Option("--only", help="This part of the suite. May be repeated.")
    ] = None,
    set_: Overrides = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="OLD.json", help="Name what became worse since then; that is status 1 too."),
    ] = None,
    lab: Annotated[
        str | None,
        typer.Option(
            "--lab",
            "-l",
            metavar="NAME",
            help="Validate in this lab, which is up already, and leave it up.",
            autocompletion=verb.completing(verb._lab_names),
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the lab. [default: the topology's]")] = None,
    runs: RunsFolder = None,
    driver: Driver = "auto",
    emulator: Emulator = "auto",
    allow_uncertified: AllowUncertified = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the lab up afterwards.", show_default=False)] = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write the result as JUnit XML too, for CI.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Does this collective library survive this fiber? Right answers, bytes on the wire, speed, faults.

    Ctrl-C takes the lab down and keeps what was measured. Exit status 0: it holds; 1: it does not, or became worse than
    the baseline; 3: it could not be told.
    """
    from testbed.lab.validate.run import validate as run

    with screen.progress() as progress:
        outcome = run(
            libraries,
            topology=topology,
            set=verb.read_overrides(set_),
            suite=_suite(suite),
            only=tuple(_part(it) for it in only or ()),
            baseline=baseline,
            lab=lab,
            name=name,
            runs=runs,
            driver=driver,
            emulator=emulator,
            allow_uncertified=allow_uncertified,
            keep=keep,
            junit=junit,
            progress=progress,
        )
    if as_json:
        from testbed.core.conformance.stored import to_json

        screen.show_json(to_json(outcome.validation))
        return outcome.exit_code
    show(outcome.validation, outcome.comparison)
    screen.show(f"result: {outcome.page}")
    return outcome.exit_code


def _suite(name: SuiteName) -> Suite:
    return "full" if name is SuiteName.full else "quick"


def _part(name: PartName) -> Part:
    parts: dict[PartName, Part] = {
        PartName.correctness: "correctness", PartName.speed: "speed", PartName.faults: "faults",
    }  # fmt: skip
    return parts[name]


# ---- what is shown


def show(validation: Validation, comparison: Comparison | None) -> None:
    """The verdict in a line; then, unless quiet, a table of libraries, one of their faults, and the reasons."""
    tried = [it for it in validation.libraries if it.verdict != "skipped"]
    head = f": {len(tried)} of {len(validation.libraries)} libraries validated on {validation.topology}"
    screen.show(tables.verdict(validation.verdict).append(head, style="bold default"))
    if screen.quiet():
        return
    if tried:
        screen.show(_summary(tried))
        if any(it.cells for it in tried):
            screen.show(_faults(tried))
    for it in validation.libraries:
        for why in it.why[:MOST_REASONS]:
            screen.show(f"{it.name}: {why}")
        if len(it.why) > MOST_REASONS:
            screen.show(f"{it.name}: and {len(it.why) - MOST_REASONS} more reasons")
    if comparison is not None:
        for change in comparison.changes:
            screen.show(f"{change.kind}: {change.library}: {change.what}: {change.before} → {change.after}")
        for note in comparison.notes:
            screen.say(note)
        if not comparison.changes:
            screen.show("nothing changed against the baseline beyond noise")


MOST_REASONS = 6


def _summary(libraries: Sequence[LibraryResult]) -> Table:
    rows: list[tables.Row] = []
    for it in libraries:
        states = Counter(case.state for case in it.cases)
        asked = sum(count for state, count in states.items() if state not in ("unsupported", "not run"))
        answers = Text(f"{states['right']} of {asked}", style="" if states["right"] == asked else tables.BAD)
        biggest = _biggest(it)
        rows.append(
            [
                it.name,
                it.version,
                tables.verdict(it.verdict),
                answers if it.cases else "-",
                "-" if biggest is None else f"{biggest.median_s * 1e3:.4g} ms",
                "-" if biggest is None else f"{biggest.efficiency:.0%}",
                "-" if biggest is None else biggest.pattern or "-",
                f"{it.took_s:.0f} s",
            ]
        )
    heads = ("library", "version", "verdict", "right answers", "largest all_reduce", "of the bound", "wire", "took")
    return tables.table(heads, rows, right=("largest all_reduce", "of the bound", "took"))


def _biggest(library: LibraryResult) -> Speed | None:
    reduced = [it for it in library.speeds if it.operation == "all_reduce"]
    return max(reduced, key=lambda it: it.size, default=None)


def _faults(libraries: Sequence[LibraryResult]) -> Table:
    names = list(dict.fromkeys(cell.fault for it in libraries for cell in it.cells))
    rows: list[tables.Row] = []
    for fault in names:
        row: list[str | Text] = [fault]
        for it in libraries:
            cell = next((cell for cell in it.cells if cell.fault == fault), None)
            if cell is None:
                row.append("-")
                continue
            style = tables.BAD if cell.outcome in _BAD_OUTCOMES else tables.UNSURE
            style = tables.GOOD if cell.outcome in _GOOD_OUTCOMES else style
            words = Text(cell.outcome, style=style)
            ended_s = cell.done_s if cell.done_s is not None else cell.error_s
            if ended_s is not None:
                words.append(f" {ended_s:.2f} s", style="default")
            if cell.rebuilt is not None:
                words.append(f", rebuilt in {cell.rebuild_s or 0.0:.1f} s" if cell.rebuilt else ", NOT rebuilt")
            row.append(words)
        rows.append(row)
    return tables.table(("fault", *(it.name for it in libraries)), rows)


def list_libraries(as_json: bool) -> None:
    """``testbed ls libraries``."""
    from testbed.host import libraries

    found = [(it, libraries.why_not(it)) for it in libraries.registry().values()]
    broken = libraries.broken()
    if as_json:
        screen.show_json(
            [
                *({"name": it.name, "title": it.title, "missing": why} for it, why in found),
                *({"name": name, "title": "", "missing": why} for name, why in broken.items()),
            ]
        )
        return
    rows: list[tables.Row] = [
        [it.name, it.title, tables.verdict("missing" if why else "ok"), why or "-"] for it, why in found
    ]
    rows += [[name, "-", tables.verdict("bad"), why] for name, why in broken.items()]
    screen.show(tables.table(("library", "what", "state", "to mend it"), rows))
