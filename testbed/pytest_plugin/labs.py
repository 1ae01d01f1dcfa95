"""Labs of tests: brought up when the first test wishes for one, healed after each, taken down whatever happens."""

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
from testbed.errors import FidelityError, HostError, MissingTool, NotAllowed, TestbedError
from testbed.lab import api, status
from testbed.lab.injected_fault import Fault
from testbed.lab.interruption import defer_interrupts
from testbed.lab.lab import Lab
from testbed.pytest_plugin.guard import Guard

__all__ = ["Labs", "Use", "Wish"]

ATTEMPTS: Final = 3
"""A machine that is busy for a second (another worker's ranks) misses the tolerance of a certificate; a fiber that is
really outside of it misses every time."""

LIT_S: Final = 5.0
"""What a healed lab gets to have all its fibers lit again; it takes milliseconds, but for protection's switch back."""

_NUMBERS: Final = itertools.count(1)


@dataclass(frozen=True)
class Wish:
    """A lab as a test wants it; two tests with equal wishes share one."""

    topology: str
    settings: tuple[tuple[str, object], ...] = ()
    agents: bool = False
    driver: str = "auto"
    emulator: str = "auto"

    @classmethod
    def of(cls, topology: object, set: Mapping[str, object] | None = None, **words: object) -> Wish:
        settings = tuple(sorted((set or {}).items()))
        return cls(str(topology), settings, **words)  # type: ignore[arg-type]


class Labs:
    """The labs of one scope; as a context manager all of them are down at its end."""

    def __init__(self, *, required: bool) -> None:
        self._required = required
        self._labs: dict[Wish, Lab] = {}
        self._refused: dict[Wish, str] = {}

    def get(self, wish: Wish) -> Lab:
        """A lab as wished for, certified; the one that is there, if it is whole.

        Skips the test if it cannot be had on this machine; fails it where labs are required, and for a wish that is
        none (no such topology), or a lab that breaks while it comes up.
        """
        __tracebackhide__ = True
        if wish in self._refused:
            self._refuse(self._refused[wish])
        lab = self._labs.get(wish)
        if lab is not None and not _whole(lab):
            self._down(wish)
            lab = None
        if lab is not None:
            return lab
        # What is raised for pytest is raised outside of the handlers, or it would show both.
        wrong = ""
        try:
            self._labs[wish] = _up(wish)
        except _CannotBeHad as error:
            self._refused[wish] = str(error)
        except TestbedError as error:
            wrong = str(error)
        if wish in self._refused:
            self._refuse(self._refused[wish])
        if wrong:
            pytest.fail(wrong, pytrace=False)
        return self._labs[wish]

    def _refuse(self, why: str) -> NoReturn:
        __tracebackhide__ = True
        if self._required:
            pytest.fail(f"{why} (and --testbed-require forbids to skip)", pytrace=False)
        pytest.skip(why)

    @contextlib.contextmanager
    def used(self, lab: Lab) -> Iterator[Use]:
        """Whatever fault began inside is ended on exit; what stood before stays. A lab that is not whole then is taken
        down: the next test gets another."""
        use = Use(lab)
        try:
            yield use
        finally:
            if not use.healed():
                for wish in [wish for wish, each in self._labs.items() if each is lab]:
                    self._down(wish)

    def _down(self, wish: Wish) -> None:
        lab = self._labs.pop(wish)
        with defer_interrupts():
            lab.down()
            guard().forget(lab.name)

    def __enter__(self) -> Labs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """All are tried; then the first failure is raised."""
        failed: list[TestbedError] = []
        for wish in list(self._labs):
            try:
                self._down(wish)
            except TestbedError as problem:
                failed.append(problem)
        if failed:
            raise failed[0]


class Use:
    """One test's use of a lab; as text, what a reader of the test's failure wants to know of it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._before = {fault.id: fault.ended is None for fault in lab.faults()}
        self._run_before = lab.run_directory

    def healed(self) -> bool:
        """End the faults that began in this use; whether the lab is as before then."""
        try:
            mine = self._faults()
            for fault in mine:
                if fault.ended is None:
                    fault.heal()
            return _whole(self.lab) and (not mine or any(self._before.values()) or _lit(self.lab))
        except TestbedError:  # its keeper is gone; perhaps that was the test
            return False

    def _faults(self) -> list[Fault]:
        return [fault for fault in self.lab.faults() if fault.id not in self._before]

    def __str__(self) -> str:
        certificate = self.lab.certificate
        sure = "certified" if certificate is not None and certificate.certified else "NOT certified"
        lines = [f"topology {self.lab.topology.name}, {sure}"]
        with contextlib.suppress(TestbedError):  # it may be down by now
            for fault in self._faults():
                lasted = "stands" if fault.ended is None else f"for {fault.ended - fault.began:.3f} s"
                lines.append(f"fault {fault.id}: {fault.type} {fault.target}, {lasted}")
        run = self.lab.run_directory
        if run is not None and run is not self._run_before:
            lines.append(f"run directory: {run.path}")
        return "\n".join(lines)


class _CannotBeHad(Exception):
    """Why this machine gives no such lab."""


def _up(wish: Wish) -> Lab:
    """Bring it up; what a user has to mend in a test (a topology that is none) is raised as it is."""
    __tracebackhide__ = True
    topology = testbed.load(wish.topology, dict(wish.settings))
    name = _unused_name()
    _on_sigterm()
    try:
        api.choose(topology, name, wish.driver, wish.emulator)
    except HostError as error:
        raise _CannotBeHad(f"no such lab can be had here: {error}") from error
    guard().remember(name)
    for attempt in itertools.count(1):
        try:
            return testbed.up(topology, name=name, agents=wish.agents, driver=wish.driver, emulator=wish.emulator)
        except FidelityError as error:
            if attempt == ATTEMPTS:
                raise _CannotBeHad(f"no certified lab in {ATTEMPTS} attempts: {error}") from error
        except (NotAllowed, MissingTool) as error:
            raise _CannotBeHad(f"no lab can be had here: {error}") from error
    raise AssertionError("unreachable")


def _unused_name() -> str:
    """Unique on this host while we live: a worker of xdist is a process of its own."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return "-".join(each for each in ("pt", worker, str(os.getpid()), str(next(_NUMBERS))) if each)


def _whole(lab: Lab) -> bool:
    return status.summary(lab._folder).state in ("up", "kept")


def _lit(lab: Lab) -> bool:
    """Whether all fibers carry light, within :data:`LIT_S`."""
    until = time.monotonic() + LIT_S
    while not all(all(link.carrier.values()) for link in lab.status().links):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


_guards: dict[int, Guard] = {}


def guard() -> Guard:
    """That of this process; one that a fork inherited would think its parent dead."""
    return _guards.setdefault(os.getpid(), Guard())


def _on_sigterm() -> None:
    """SIGTERM and SIGHUP end pytest at once, and no fixture would be torn down. From the first lab on they are Ctrl-C,
    unless somebody has a handler of their own."""
    if threading.current_thread() is not threading.main_thread():
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one must not cut the taking down short
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, interrupt)
