"""Looks: where words go, how much is said, progress on a terminal and in a file.

Results go to stdout; progress, hints and errors to stderr, so that ``--json`` can be piped. Colours and redrawing are
for terminals only; NO_COLOR is obeyed (by rich).
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, Group, RenderableType
from rich.text import Text

from testbed.core.units import format_rate

if TYPE_CHECKING:
    from rich.live import Live

    from testbed.core.certification.certificate import Certificate
    from testbed.lab.api import LiveState

PIPE_WIDTH = 200
"""Columns of what is not a terminal: a table for grep must not be folded at 80."""

TICK_EVERY_S = 10.0
"""In a file one line of a running job is enough in this time."""

LEAST_WIDTH = 72
"""Columns below which tables are folded no further: a line that the terminal breaks can still be read, a column of
single letters cannot."""

MOST_LINKS_SHOWN = 8
"""While a job runs; more would push the line that matters off the screen."""

_settings = {"quiet": False, "verbose": False}


def configure(*, quiet: bool = False, verbose: bool = False) -> None:
    """Said before the verb or after it, ``-q`` and ``-v`` count once."""
    _settings["quiet"] |= quiet
    _settings["verbose"] |= verbose


def reset() -> None:
    """As if the program had just begun: for tests."""
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
    """Columns of $COLUMNS or of the terminal, but not too few; None: the terminal's, as they change."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal():
        return max(int(said), LEAST_WIDTH)
    if not stream.isatty():
        return PIPE_WIDTH
    return LEAST_WIDTH if 0 < os.get_terminal_size(stream.fileno()).columns < LEAST_WIDTH else None


@functools.cache
def out() -> Console:
    """For results."""
    return _console(stderr=False)


@functools.cache
def err() -> Console:
    """For everything else."""
    return _console(stderr=True)


def show(result: RenderableType) -> None:
    """A result."""
    out().print(result, soft_wrap=isinstance(result, str))


def show_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def show_line(line: str) -> None:
    """A line of somebody else's output, as it came."""
    sys.stdout.write(line.rstrip("\n") + "\n")
    sys.stdout.flush()


def say(text: str, style: str = "") -> None:
    """A hint or a note; nothing with ``-q``."""
    if not quiet():
        err().print(Text(text, style=style), soft_wrap=True)


def error(text: str) -> None:
    """``testbed: `` and the message, in as many lines as it has."""
    first, *more = text.splitlines() or [""]
    line = Text("testbed: ", style="bold red").append(first, style="not bold default")
    err().print(line, soft_wrap=True)
    for each in more:
        err().print(Text(f"         {each}"), soft_wrap=True)


# ---- progress


class Quiet:
    """Progress that is not shown; also what the others are made from."""

    def __enter__(self) -> Quiet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)

    def close(self, *, failed: bool = False) -> None:
        pass

    def phase(self, name: str, detail: str = "") -> None:
        pass

    def certificate(self, certificate: Certificate) -> None:
        pass

    def tick(self, state: LiveState) -> None:
        pass

    def doing(self, text: str) -> None:
        """What goes on within the phase by now."""

    def event(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass


class Plain(Quiet):
    """Lines, each with the seconds since the command began: for files, pipes and CI."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._ticked = -TICK_EVERY_S

    def _line(self, text: str) -> None:
        err().print(f"[{time.monotonic() - self._began:7.2f} s] {text}", soft_wrap=True)

    def phase(self, name: str, detail: str = "") -> None:
        self._line(f"{name}: {detail}" if detail else name)

    def certificate(self, certificate: Certificate) -> None:
        self._line(_certificate_line(certificate))

    def tick(self, state: LiveState) -> None:
        now = time.monotonic()
        if now - self._ticked >= TICK_EVERY_S:
            self._ticked = now
            self._line(", ".join(filter(None, (_training_line(state), *_fiber_words(state)))))

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
    """Finished phases as lines; below them, redrawn, what goes on: phase, training, fibers, faults."""

    def __init__(self) -> None:
        self._began = self._phase_began = time.monotonic()
        self._phase = ("", "")
        self._state: LiveState | None = None
        self._doing = ""
        self._live: Live | None = None

    def __enter__(self) -> Drawn:
        from rich.live import Live

        self._live = Live(
            console=err(), get_renderable=self._draw, refresh_per_second=5, transient=True, redirect_stdout=False
        )
        self._live.start()
        return self

    def close(self, *, failed: bool = False) -> None:
        self._finish(failed)
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _finish(self, failed: bool = False) -> None:
        name, detail = self._phase
        if name:
            took = time.monotonic() - self._phase_began
            mark = Text(" ✗ ", style="red") if failed else Text(" ✓ ", style="green")
            err().print(mark.append(f"{name:<12}", style="default").append(f"{took:6.2f} s  {detail}", style="dim"))
        self._phase = ("", "")

    def phase(self, name: str, detail: str = "") -> None:
        self._finish()
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

    def _draw(self) -> RenderableType:
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
            lines += [Text("   " + words, style="dim") for words in _fiber_words(self._state)]
            lines += [Text(f"   ⚡ {fault}", style="bold yellow") for fault in self._state.faults]
        return Group(*lines)


def progress() -> Quiet:
    """What fits where stderr goes; use it as a context manager."""
    if quiet():
        return Quiet()
    return Drawn() if err().is_terminal else Plain()


def _training_line(state: LiveState) -> str:
    words = [f"step {state.step}/{state.steps}"]
    if state.train_loss is not None:
        words.append(f"train_loss {state.train_loss:.3f}")
    if state.tokens_per_s:
        words.append(f"{state.tokens_per_s:,.0f} tokens/s")
    return "  ".join(words)


def _fiber_words(state: LiveState) -> list[str]:
    """One text a link, like ``north → west 120 Mb/s → east 98 Mb/s``; of a large lab the busiest ones."""
    links: dict[str, dict[str, float]] = {}
    for direction, bps in state.throughput_bps.items():
        link, _, site = direction.partition(":")
        links.setdefault(link, {})[site] = bps
    shown = list(links)
    if len(links) > MOST_LINKS_SHOWN:
        shown = sorted(links, key=lambda link: -sum(links[link].values()))[:MOST_LINKS_SHOWN]
    words = [
        " ".join([link, *(f"→ {site} {format_rate(bps, 3) if bps else '0 b/s'}" for site, bps in links[link].items())])
        for link in shown
    ]
    return [*words, f"and {len(links) - len(shown)} more links"] if len(links) > len(shown) else words


def _certificate_line(certificate: Certificate) -> str:
    if certificate.certified:
        return f"certified: {len(certificate.links)} links within tolerance, nothing goes around them"
    return "OUTSIDE TOLERANCE: " + "; ".join(certificate.why)
