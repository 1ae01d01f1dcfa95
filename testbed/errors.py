"""Every error of the testbed, in one tree; each class carries its exit code.

::

    TestbedError                 3  something failed
    ├── UserError                2  what you typed or wrote must change
    │   ├── FileMistakes         2  a topology or experiment file; holds every finding
    │   ├── UnknownName          2  no such lab, topology, link, node…; offers the nearest
    │   ├── NameTaken            2  that name is in use by a lab or a namespace; choose another, or take that one down
    │   └── NotAllowed           2  neither root nor the capabilities that this needs
    ├── MeasuredBad              1  it was measured, and it is not good enough
    │   ├── FidelityError        1  a fiber is outside tolerance
    │   ├── WireError            1  a collective's bytes did not cross the fiber
    │   └── JobFailed            1  a rank failed, or the job did not reach its last step
    ├── HostError                3  the machine failed us or lacks something
    │   ├── MissingTool          3  names the command that installs it
    │   └── StorageError         3  disk full, or a folder that cannot be written
    ├── LabError                 3  the lab is degraded, gone, another user's, or did not answer in time
    └── Interrupted            130  Ctrl-C or SIGTERM; everything was undone first

Foreign exceptions are translated where they enter (``testbed.host``), always with ``from``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "FidelityError",
    "FileMistakes",
    "Finding",
    "HostError",
    "Interrupted",
    "JobFailed",
    "LabError",
    "MeasuredBad",
    "MissingTool",
    "NameTaken",
    "NotAllowed",
    "StorageError",
    "TestbedError",
    "UnknownName",
    "UserError",
    "WireError",
]


class TestbedError(Exception):
    """Root of the tree. ``str(error)`` is one or more plain sentences for the user."""

    exit_code = 3
    __test__ = False  # the name starts with Test: keep pytest from collecting it


class UserError(TestbedError):
    exit_code = 2


@dataclass(frozen=True, order=True)
class Finding:
    """One mistake in a user's file.

    ``line`` counts from 1; 0 means that the file as a whole is meant. ``fix`` says what would be right.
    """

    file: str
    line: int
    message: str
    fix: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.message}" + (f"; {self.fix}" if self.fix else "")


class FileMistakes(UserError):
    """All mistakes of a file at once, in the order of its lines."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings: tuple[Finding, ...] = tuple(sorted(set(findings)))
        super().__init__("\n".join(str(finding) for finding in self.findings))


class UnknownName(UserError):
    """No ``what`` (such as "link") is called ``name``; the message suggests the closest of ``known``, or lists them."""

    def __init__(self, what: str, name: str, known: Iterable[str] = ()) -> None:
        self.what, self.name, self.known = what, name, tuple(dict.fromkeys(known))
        near = difflib.get_close_matches(name, self.known, n=3, cutoff=0.5)
        if near:
            hint = f"; did you mean {' or '.join(near)}?"
        else:
            shown = sorted(self.known)
            hint = f" (available: {', '.join(shown[:12]) or 'none'}{', …' if len(shown) > 12 else ''})"
        printable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
        super().__init__(f"unknown {what} '{printable}'{hint}")


class NameTaken(UserError):
    pass


class NotAllowed(UserError):
    pass


class MeasuredBad(TestbedError):
    exit_code = 1


class FidelityError(MeasuredBad):
    pass


class WireError(MeasuredBad):
    pass


class JobFailed(MeasuredBad):
    pass


class HostError(TestbedError):
    exit_code = 3


class MissingTool(HostError):
    """``tool`` is not on this machine; ``install`` is the command that brings it."""

    def __init__(self, tool: str, install: str, why: str = "") -> None:
        self.tool, self.install = tool, install
        super().__init__(f"{tool} is missing{': ' + why if why else ''}; install it with: {install}")


class StorageError(HostError):
    pass


class LabError(TestbedError):
    exit_code = 3


class Interrupted(TestbedError):
    exit_code = 130
