"""Console output: streams, verbosity, and progress on a terminal or in a file.

Results go to stdout; progress, hints and errors to stderr, so that ``--json`` can be piped. Colours and redrawing are
for terminals only; rich honours NO_COLOR.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TextIO, TypeAlias, TypeVar

from rich.console import Console, Group, RenderableType
from rich.text import Text

from testbed.errors import Interrupted, StorageError, UserError

if TYPE_CHECKING:
    from rich.live import Live

    from testbed.core.certification.certificate import Certificate
    from testbed.lab.api import LiveState
    from testbed.lab.progress import HowEnded

PIPE_WIDTH = 200
"""Width if the stream is not a terminal: a table for grep must not be folded at 80 columns."""

TICK_EVERY_S = 10.0
"""Interval of a running job's progress lines in a file."""

LEAST_WIDTH = 72
"""Minimum width of tables: a line that the terminal wraps is still readable, a column of single letters is not."""

MOST_LINKS_SHOWN = 8
"""Links shown while a job runs; more would push the training line off the screen."""

_MARKS: Final[Mapping[HowEnded, tuple[str, str]]] = {
    "done": (" ✓ ", "green"), "failed": (" ✗ ", "red"), "interrupted": (" ■ ", "yellow"),
}  # fmt: skip
"""Sign and style of a phase that has ended."""

_settings = {"quiet": False, "verbose": False}


def configure(*, quiet: bool = False, verbose: bool = False) -> None:
    """Set the verbosity; ``-q`` and ``-v`` may come before or after the verb."""
    _settings["quiet"] |= quiet
    _settings["verbose"] |= verbose


def reset() -> None:
    """Return to the state at program start (for tests)."""
    _settings.update(quiet=False, verbose=False)
    out.cache_clear()
    err.cache_clear()


def quiet() -> bool:
    return _settings["quiet"]


def verbose() -> bool:
    return _settings["verbose"]


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=_width(stream))


def _width(stream: TextIO) -> int | None:
    """Return the width from $COLUMNS or the terminal, at least :data:`LEAST_WIDTH`; None: follow the terminal."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        return max(int(columns), LEAST_WIDTH)
    if not stream.isatty():
        return PIPE_WIDTH
    return LEAST_WIDTH if 0 < os.get_terminal_size(stream.fileno()).columns < LEAST_WIDTH else None


@functools.cache
def out() -> Console:
    """Return the console for results (stdout)."""
    return _console(stderr=False)


@functools.cache
def err() -> Console:
    """Return the console for everything else (stderr)."""
    return _console(stderr=True)


class Note(Text):
    """A hint or note among results, for stderr; nothing with ``-q``."""

    def __init__(self, text: str, style: str = "dim") -> None:
        super().__init__(text, style)


class Paragraph(Text):
    """Prose that is wrapped between words: it has no command that a fold would break."""


class Line(str):
    """A line for other programs: printed unchanged."""


Shown: TypeAlias = RenderableType


def show(result: Shown) -> None:
    """Print a result."""
    if isinstance(result, Note):
        if not quiet():
            err().print(result, soft_wrap=True)
    elif isinstance(result, Line):
        show_line(result)
    else:  # a command in text would be folded without soft_wrap
        out().print(result, soft_wrap=isinstance(result, str | Text) and not isinstance(result, Paragraph))


def show_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def show_line(line: str) -> None:
    """Print a line of another program's output unchanged."""
    sys.stdout.write(line.rstrip("\n") + "\n")
    sys.stdout.flush()


def show_error_line(line: str) -> None:
    """Print a line that another program wrote to its stderr, unchanged, to stderr."""
    sys.stderr.write(line.rstrip("\n") + "\n")
    sys.stderr.flush()


def say(text: str, style: str = "") -> None:
    """Print a hint or note; nothing with ``-q``."""
    show(Note(text, style))


def error(text: str) -> None:
    """Print an error of one or more lines, after the prefix ``testbed: ``."""
    first, *others = text.splitlines() or [""]
    line = Text("testbed: ", style="bold red").append(first, style="not bold default")
    err().print(line, soft_wrap=True)
    for other in others:
        err().print(Text(f"         {other}"), soft_wrap=True)


def open_page(page: Path) -> None:
    """Open a page in a browser; in a command for a client of another host, in the client's browser.

    Raises UserError if there is no browser, StorageError if the page cannot be copied for the client.
    """
    import webbrowser

    from testbed.core.remote.leash_frames import PAGE_COPY

    if copy := os.environ.get(PAGE_COPY):
        try:
            shutil.copyfile(page, copy)
        except OSError as error:
            raise StorageError(f"cannot copy {page} for the client: {error.strerror}") from error
        return
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) or not webbrowser.open(
        page.resolve().as_uri()
    ):
        raise UserError(f"no browser is available on this host; copy {page} (a single file) to a machine that has one")
    sys.stdout.flush()


# ---- progress


Counted = TypeVar("Counted")

SILENT_S: Final = 1.0
"""What takes no longer shows no progress."""


class Counter:
    """Count results as they come, on stderr: ``counter(result)`` returns ``result``."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._drawn = err().is_terminal
        self._next_s = 0.0

    def __enter__(self) -> Self:
        self._next_s = time.monotonic() + SILENT_S
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn and self._done and not quiet():
            err().print(" " * 40, end="\r")

    def __call__(self, result: Counted) -> Counted:
        self._done += 1
        if not quiet() and self._done < self._total and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + (0.2 if self._drawn else TICK_EVERY_S)
            err().print(f"{self._done} of {self._total} {self._what}", end="\r" if self._drawn else "\n")
        return result


class Quiet:
    """Progress that is not shown; base class of the others."""

    def __enter__(self) -> Quiet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the current phase, if any is left: it failed or was interrupted only if nothing has told its end."""
        if error is None:
            self.ended("done")
        else:
            self.ended("interrupted" if isinstance(error, KeyboardInterrupt | Interrupted) else "failed")
        self.close()

    def close(self) -> None:
        pass

    def phase(self, name: str, detail: str = "") -> None:
        pass

    def ended(self, how: HowEnded) -> None:
        """Show how the current phase ended. Later errors are not its own."""

    def certificate(self, certificate: Certificate) -> None:
        pass

    def tick(self, state: LiveState) -> None:
        pass

    def doing(self, text: str) -> None:
        """Show the current activity within the phase."""

    def event(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass


class Plain(Quiet):
    """Progress as lines, each with the seconds since the command started: for files, pipes and CI."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._ticked = -TICK_EVERY_S
        self._phase = ""

    def _line(self, text: str) -> None:
        err().print(f"[{time.monotonic() - self._began:7.2f} s] {text}", soft_wrap=True)

    def phase(self, name: str, detail: str = "") -> None:
        self._phase = name
        self._line(f"{name}: {detail}" if detail else name)

    def ended(self, how: HowEnded) -> None:
        if self._phase and how != "done":
            self._line(f"{self._phase}: {how}")
        self._phase = ""

    def certificate(self, certificate: Certificate) -> None:
        self._line(_certificate_line(certificate))

    def tick(self, state: LiveState) -> None:
        now = time.monotonic()
        if now - self._ticked >= TICK_EVERY_S:
            self._ticked = now
            self._line(", ".join(filter(None, (_training_line(state), *_fiber_lines(state)))))

    def doing(self, text: str) -> None:
        now = time.monotonic()
        if now - self._ticked >= TICK_EVERY_S:
            self._ticked = now
            self._line(text)

    def event(self, text: str) -> None:
        self._line(text)

    def note(self, text: str) -> None:
        self._line(text)


class Drawn(Quiet):
    """Finished phases as lines; below them a redrawn area with the current phase, training, fibers and faults."""

    def __init__(self) -> None:
        self._began = self._phase_began = time.monotonic()
        self._phase = ("", "")
        self._state: LiveState | None = None
        self._doing = ""
        self._live: Live | None = None

    def __enter__(self) -> Drawn:
        from rich.live import Live

        self._live = Live(
            console=err(), get_renderable=self.draw, refresh_per_second=5, transient=True, redirect_stdout=False
        )
        self._live.start()
        return self

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def ended(self, how: HowEnded) -> None:
        name, detail = self._phase
        if name:
            took_s = time.monotonic() - self._phase_began
            line = Text(*_MARKS[how]).append(f"{name:<12}", style="default")
            word = "" if how == "done" else f"{how}{': ' if detail else ''}"
            err().print(line.append(f"{took_s:6.2f} s  {word}{detail}", style="dim"))
        self._phase = ("", "")

    def phase(self, name: str, detail: str = "") -> None:
        self.ended("done")
        self._phase, self._phase_began = (name, detail), time.monotonic()
        self._state, self._doing = None, ""

    def certificate(self, certificate: Certificate) -> None:
        self.note(_certificate_line(certificate))

    def tick(self, state: LiveState) -> None:
        self._state = state

    def doing(self, text: str) -> None:
        self._doing = text

    def event(self, text: str) -> None:
        err().print(Text(f" ⚡ {time.monotonic() - self._began:6.1f} s  {text}", style="yellow"))

    def note(self, text: str) -> None:
        err().print(Text(f"   {text}", style="dim"))

    def draw(self) -> RenderableType:
        name, detail = self._phase
        if not name:
            return Text("")
        now = time.monotonic()
        spin = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"[int(now * 10) % 10]
        head = Text(f" {spin} ", style="cyan").append(f"{name:<12}", style="bold default")
        lines: list[RenderableType] = [head.append(f"{now - self._phase_began:6.1f} s  {detail}", style="dim")]
        if self._doing:
            lines.append(Text("   " + self._doing))
        if self._state is not None:
            lines.append(Text("   " + _training_line(self._state)))
            lines += [Text("   " + line, style="dim") for line in _fiber_lines(self._state)]
            lines += [Text(f"   ⚡ {fault}", style="bold yellow") for fault in self._state.faults]
        return Group(*lines)


def progress() -> Quiet:
    """Return the progress display that suits stderr; use it as a context manager."""
    if quiet():
        return Quiet()
    return Drawn() if err().is_terminal else Plain()


def _training_line(state: LiveState) -> str:
    parts = [f"step {state.step}" + ("" if state.steps is None else f"/{state.steps}")]
    if state.train_loss is not None:
        parts.append(f"train_loss {state.train_loss:.3f}")
    if state.tokens_per_s:
        parts.append(f"{state.tokens_per_s:,.0f} tokens/s")
    return "  ".join(parts)


def _fiber_lines(state: LiveState) -> list[str]:
    """Return a line per link, like ``north → west 120 Mb/s → east 98 Mb/s``; in a large lab the busiest links only."""
    from testbed.core.physics import full_scale
    from testbed.core.topology.direction import head_of, link_of

    links: dict[str, dict[str, float]] = {}
    for direction, bps in state.throughput_bps.items():
        links.setdefault(link_of(direction), {})[head_of(direction)] = bps
    shown = list(links)
    if len(links) > MOST_LINKS_SHOWN:
        shown = sorted(links, key=lambda link: -sum(links[link].values()))[:MOST_LINKS_SHOWN]

    def rate(bps: float) -> str:
        return full_scale.stands_for(bps, state.scale, 3) if bps else "0 b/s"

    lines = [" ".join([link, *(f"→ {site} {rate(bps)}" for site, bps in links[link].items())]) for link in shown]
    return [*lines, f"and {len(links) - len(shown)} more links"] if len(links) > len(shown) else lines


def _certificate_line(certificate: Certificate) -> str:
    if certificate.certified:
        count = len(certificate.links)
        links = "1 link" if count == 1 else f"{count} links"
        noise = f"; {certificate.noise_note.removeprefix('noisy host: ')}" if certificate.noisy else ""
        return f"{certificate.verdict}: {links} within tolerance, no path bypasses them{noise}"
    return f"{certificate.verdict.upper()}: {'; '.join(certificate.why or certificate.unmeasured)}"
