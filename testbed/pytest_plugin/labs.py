"""Labs of tests: brought up when the first test requests one, healed after each test, always taken down."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Final, NoReturn

import pytest

import testbed
from testbed.errors import FidelityError, HostError, MissingTool, NoisyHost, NotAllowed, TestbedError
from testbed.lab import api, status
from testbed.lab.injected_fault import Fault
from testbed.lab.interruption import defer_interrupts
from testbed.lab.lab import Lab
from testbed.pytest_plugin.guard import Guard

__all__ = ["Labs", "Use", "Wish"]

LIT_S: Final = 5.0
"""How long a healed lab may take until all its fibers are lit: milliseconds, except while protection reverts."""

_NUMBERS: Final = itertools.count(1)


@dataclass(frozen=True)
class Wish:
    """The lab that a test requests; tests with equal requests share one."""

    topology: str
    settings: tuple[tuple[str, object], ...] = ()
    agents: bool = False
    driver: str = "auto"
    emulator: str = "auto"
    strict: bool = False

    @classmethod
    def of(cls, topology: object, set: Mapping[str, object] | None = None, **options: object) -> Wish:
        settings = tuple(sorted((set or {}).items()))
        return cls(str(topology), settings, **options)  # type: ignore[arg-type]


class Labs:
    """The labs of one scope; as a context manager it takes all of them down on exit."""

    def __init__(self, *, required: bool) -> None:
        self._required = required
        self._labs: dict[Wish, Lab] = {}
        self._refused: dict[Wish, str] = {}

    def get(self, wanted: Wish) -> Lab:
        """Return a certified lab as requested; an existing one, if it is intact.

        Skips the test if the lab is unavailable on this machine, or fails it if labs are required. Also fails it for an
        invalid request (an unknown topology) and for a lab that breaks during bring-up.
        """
        __tracebackhide__ = True
        if wanted in self._refused:
            self._refuse(self._refused[wanted])
        lab = self._labs.get(wanted)
        if lab is not None and not _whole(lab):
            self._down(wanted)
            lab = None
        if lab is not None:
            return lab
        # Exceptions for pytest are raised outside the handlers, or pytest would show both.
        wrong = ""
        try:
            self._labs[wanted] = _up(wanted)
        except _CannotBeHad as error:
            self._refused[wanted] = str(error)
        except TestbedError as error:
            wrong = str(error)
        if wanted in self._refused:
            self._refuse(self._refused[wanted])
        if wrong:
            pytest.fail(wrong, pytrace=False)
        return self._labs[wanted]

    def _refuse(self, why: str) -> NoReturn:
        __tracebackhide__ = True
        if self._required:
            pytest.fail(f"{why} (not skipped because of --testbed-require)", pytrace=False)
        pytest.skip(why)

    @contextlib.contextmanager
    def used(self, lab: Lab) -> Iterator[Use]:
        """End the faults that began inside on exit, and keep earlier ones. A lab that is not intact then is taken down,
        and the next test gets another."""
        use = Use(lab)
        try:
            yield use
        finally:
            if not use.healed():
                for wanted in [wanted for wanted, held in self._labs.items() if held is lab]:
                    self._down(wanted)

    def _down(self, wanted: Wish) -> None:
        lab = self._labs.pop(wanted)
        with defer_interrupts():
            lab.down()
            guard().forget(lab.name)

    def __enter__(self) -> Labs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Take down every lab, then raise the first failure."""
        failed: list[TestbedError] = []
        for wanted in list(self._labs):
            try:
                self._down(wanted)
            except TestbedError as problem:
                failed.append(problem)
        if failed:
            raise failed[0]


class Use:
    """One test's use of a lab; ``str()`` gives what the report of a failed test shows about the lab."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._before = {fault.id: fault.ended is None for fault in lab.faults()}
        self._run_before = lab.run_directory

    def healed(self) -> bool:
        """End the faults that began in this use; return whether the lab is then as before."""
        try:
            mine = self._faults()
            for fault in mine:
                if fault.ended is None:
                    fault.heal()
            return _whole(self.lab) and (not mine or any(self._before.values()) or _lit(self.lab))
        except TestbedError:  # the keeper is gone, possibly killed by the test
            return False

    def _faults(self) -> list[Fault]:
        return [fault for fault in self.lab.faults() if fault.id not in self._before]

    def __str__(self) -> str:
        certificate = self.lab.certificate
        sure = "not certified" if certificate is None else certificate.verdict
        lines = [f"topology {self.lab.topology.name}, {sure}"]
        with contextlib.suppress(TestbedError):  # the lab may be down
            for fault in self._faults():
                lasted = "active" if fault.ended is None else f"for {fault.ended - fault.began:.3f} s"
                lines.append(f"fault {fault.id}: {fault.type} {fault.target}, {lasted}")
        run = self.lab.run_directory
        if run is not None and run is not self._run_before:
            lines.append(f"run directory: {run.path}")
        return "\n".join(lines)


class _CannotBeHad(Exception):
    """The lab is unavailable on this machine; the message says why."""


def _up(options: Wish) -> Lab:
    """Bring a lab up. Errors that the test's author must fix (an unknown topology) are raised unchanged."""
    __tracebackhide__ = True
    topology = testbed.load(options.topology, dict(options.settings))
    name = _unused_name()
    _on_sigterm()
    try:
        api.choose(topology, name, options.driver, options.emulator)
    except HostError as error:
        raise _CannotBeHad(f"this lab is unavailable here: {error}") from error
    guard().remember(name)
    try:
        return testbed.up(
            topology,
            name=name,
            agents=options.agents,
            driver=options.driver,
            emulator=options.emulator,
            strict=options.strict,
        )
    except (FidelityError, NoisyHost) as error:
        raise _CannotBeHad(f"no certified lab: {error}") from error
    except (NotAllowed, MissingTool) as error:
        raise _CannotBeHad(f"labs are unavailable here: {error}") from error


def _unused_name() -> str:
    """Return a name that is unique on this host while this process lives; each xdist worker is a process."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return "-".join(part for part in ("pt", worker, str(os.getpid()), str(next(_NUMBERS))) if part)


def _whole(lab: Lab) -> bool:
    return status.whole(lab._folder)


def _lit(lab: Lab) -> bool:
    """Wait up to :data:`LIT_S` for carrier on all fibers; return whether all have it."""
    until = time.monotonic() + LIT_S
    while not all(all(link.carrier.values()) for link in lab.status().links):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


_guards: dict[int, Guard] = {}


def guard() -> Guard:
    """Return this process's guard; one inherited by fork watches the parent."""
    return _guards.setdefault(os.getpid(), Guard())


def _on_sigterm() -> None:
    """Treat SIGTERM and SIGHUP like Ctrl-C from the first lab on, unless they already have a handler. By default they
    end pytest at once, without tearing fixtures down."""
    if threading.current_thread() is not threading.main_thread():
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the teardown
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, interrupt)
