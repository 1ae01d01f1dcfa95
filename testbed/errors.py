"""The error tree of the testbed; each class carries its exit code.

::

    TestbedError                 3  something failed
    ├── UserError                2  invalid input: the command line, an argument or a file must change
    │   ├── FileMistakes         2  invalid topology or experiment file; holds every finding
    │   ├── UnknownName          2  no such lab, topology, link, node…; suggests close matches
    │   ├── NameTaken            2  name in use by a lab or a namespace; choose another, or take that lab down
    │   ├── NotAllowed           2  missing privileges: root, or the named capabilities
    │   ├── CannotStart          2  no such command, or it cannot be executed; nothing was started (launch: 127, 126)
    │   └── ProgramBarred        2  the user that programs run as cannot read or write a path; nothing was started
    ├── MeasuredBad              1  measured, and not good enough
    │   ├── FidelityError        1  a fiber is outside tolerance
    │   ├── WireError            1  a collective's bytes did not cross the fiber
    │   └── JobFailed            1  a rank failed, or the job did not reach its last step
    ├── HostError                3  the host failed or lacks a capability
    │   ├── MissingTool          3  a program is not installed; names the command that installs it
    │   ├── NoisyHost            3  the host delays too many packets to measure, or is noisy with --strict
    │   └── StorageError         3  disk full, or a folder that cannot be written
    ├── LabError                 3  the lab is degraded, gone, another user's, or did not answer in time
    │   └── LabBusy              2  another job is running in the lab; stop that one, or wait for it
    └── Interrupted            130  Ctrl-C or SIGTERM; raised after every change was undone

Exceptions of other libraries are translated at the boundary (``testbed.host``), always with ``from``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = [
    "CannotStart",
    "FidelityError",
    "FileMistakes",
    "Finding",
    "HostError",
    "Interrupted",
    "JobFailed",
    "LabBusy",
    "LabError",
    "MeasuredBad",
    "MissingTool",
    "NameTaken",
    "NoisyHost",
    "NotAllowed",
    "ProgramBarred",
    "StorageError",
    "TestbedError",
    "UnknownName",
    "UserError",
    "WireError",
    "raise_all",
]


class TestbedError(Exception):
    """Root of the tree. ``str(error)`` is one or more sentences for the user."""

    exit_code = 3
    __test__ = False  # the name starts with Test: keep pytest from collecting it


class UserError(TestbedError):
    """Invalid input: the command line, an argument or a file must change."""

    exit_code = 2


@dataclass(frozen=True, order=True)
class Finding:
    """One mistake in a user's file.

    ``line`` counts from 1; 0 stands for the whole file. ``fix`` says what to write instead. A ``warning`` is no
    mistake: it can run, and the message says what that costs.
    """

    file: str
    line: int
    message: str
    fix: str = ""
    warning: bool = False

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        kind = "warning: " if self.warning else ""
        return f"{place}: {kind}{self.message}" + (f"; {self.fix}" if self.fix else "")


class FileMistakes(UserError):
    """All mistakes of a file at once, in line order."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings: tuple[Finding, ...] = tuple(sorted(set(findings)))
        super().__init__("\n".join(str(finding) for finding in self.findings))


def _closest(name: str, candidates: Sequence[str]) -> list[str]:
    """Return up to three of ``candidates`` that are about as similar to ``name`` as the most similar one; upper and
    lower case are alike."""
    lower = {candidate.lower(): candidate for candidate in reversed(candidates)}
    matches = difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.55)
    alike = [difflib.SequenceMatcher(None, match, name.lower()).ratio() for match in matches]
    return [lower[match] for match, ratio in zip(matches, alike, strict=True) if ratio > alike[0] - 0.1]


_LONGEST_NAME = 64
_MOST_AVAILABLE = 16


class UnknownName(UserError):
    """No ``what`` (such as "link") is called ``name``; ``hint`` suggests the closest of ``available``, or lists them.

    ``hint`` is empty if there are none. Names that do not fit a message, as a user's file may have, are not suggested;
    a path is shown whole.
    """

    def __init__(self, what: str, name: str, available: Iterable[str] = ()) -> None:
        self.what, self.name, self.available = what, name, tuple(dict.fromkeys(available))
        fit = [
            candidate
            for candidate in self.available
            if candidate.isprintable() and (len(candidate) <= _LONGEST_NAME or "/" in candidate)
        ]
        near = _closest(name, fit)
        printable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
        if len(printable) > _LONGEST_NAME and "/" not in printable:
            printable = printable[: _LONGEST_NAME - 1] + "…"
        message = f"unknown {what} '{printable}'"
        self.close = bool(near)
        self.hint = ""
        if near:
            self.hint = f"did you mean {' or '.join(near)}?"
            message = f"{message}; {self.hint}"
        elif fit:
            ellipsis = ", …" if len(fit) > _MOST_AVAILABLE else ""
            self.hint = f"available: {', '.join(fit[:_MOST_AVAILABLE])}{ellipsis}"
            message = f"{message} ({self.hint})"
        super().__init__(message)


class NameTaken(UserError):
    """The name is in use by a lab or a namespace."""


class NotAllowed(UserError):
    """This process lacks the privileges: root, or the capabilities that the message names."""


class CannotStart(UserError):
    """No node can start the command of a launch; nothing was started. ``status`` is a shell's: 127 if the command was
    not found, 126 if it cannot be executed."""

    def __init__(self, message: str, status: int = 127) -> None:
        self.status = status
        super().__init__(message)


class ProgramBarred(UserError):
    """The user that ranks, launched programs and libraries run as cannot read or write a path; nothing was started."""


class MeasuredBad(TestbedError):
    """Something was measured and is not good enough."""

    exit_code = 1


class FidelityError(MeasuredBad):
    """A fiber is outside tolerance, or no fiber was measured.

    ``certificate`` is the measurement, a :class:`~testbed.core.certification.certificate.Certificate`, if one was made,
    and ``scale`` that of its topology.
    """

    def __init__(self, message: str, certificate: object = None, scale: float = 1.0) -> None:
        super().__init__(message)
        self.certificate = certificate
        self.scale = scale


class WireError(MeasuredBad):
    """A collective's bytes did not cross the fiber."""


class JobFailed(MeasuredBad):
    """A rank failed, or the job did not reach its last step."""


class HostError(TestbedError):
    """The host failed or lacks a capability."""

    exit_code = 3


class HostBusy(HostError):
    """Another measurement holds this host; the message names it. Nothing began."""


class MissingTool(HostError):
    """``tool`` is not installed on this host; ``install`` is the command that installs it."""

    def __init__(self, tool: str, install: str, why: str = "") -> None:
        self.tool, self.install = tool, install
        super().__init__(f"{tool} is missing{': ' + why if why else ''}; install it with: {install}")


class NoisyHost(HostError):
    """The host delays too many packets to measure the fibers now, or is noisy with ``strict``.

    ``certificate`` and ``scale`` are as of :class:`FidelityError`.
    """

    def __init__(self, message: str, certificate: object = None, scale: float = 1.0) -> None:
        super().__init__(message)
        self.certificate = certificate
        self.scale = scale


class StorageError(HostError):
    """The disk is full, or a file or folder cannot be written."""


class LabError(TestbedError):
    """The lab is degraded, gone, another user's, or did not answer in time."""

    exit_code = 3


class LabBusy(LabError):
    """Another job is running in the lab; the message names it. Exit status 2: nothing has failed, and nothing began."""

    exit_code = 2


class Interrupted(TestbedError):
    """Ctrl-C or SIGTERM; raised after every change was undone."""

    exit_code = 130


def raise_all(failures: Sequence[Exception]) -> None:
    """Raise what failed among things that were all tried: nothing, the only failure, or a HostError that lists them."""
    if not failures:
        return
    if len(failures) == 1:
        raise failures[0]
    # One cause, such as a full disk, makes many fail with the same words.
    messages = dict.fromkeys(
        str(failure) if isinstance(failure, TestbedError) else repr(failure) for failure in failures
    )
    raise HostError("; ".join(messages)) from failures[0]
