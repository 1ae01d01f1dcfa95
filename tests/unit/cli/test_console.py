"""Progress: lines in a file, redrawn on a terminal, nothing with -q."""

from __future__ import annotations

import io
import re

import pytest
from builders.tables import table
from rich.console import Console

from testbed.cli import console
from testbed.errors import Interrupted
from testbed.lab.api import LiveState
from testbed.lab.progress import Unbreakable

FIBERS = {"north:west": 224e6, "north:east": 0.0, "south:west": 1.5e6, "south:east": 2e6}
STATE = LiveState(120, 500, 2.913, 8136.0, FIBERS, ("cut north",))


@pytest.fixture(autouse=True)
def fresh() -> None:
    console.reset()


def report(progress: console.Quiet) -> None:
    """A short run, as the library reports it."""
    with progress:
        progress.phase("fibers", "2 fibers")
        progress.phase("train", "500 steps")
        progress.tick(STATE)
        progress.tick(STATE)
        progress.event("cut north: began (f1)")
        progress.note("a note")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of stderr without their times."""
    captured = capsys.readouterr()
    assert captured.out == "", "progress is no result"
    matches = [re.fullmatch(r"\[ *\d+\.\d\d s\] (.*)", line) for line in captured.err.splitlines()]
    return [match[1] if match else f"no time: {captured.err}" for match in matches]


def test_progress_in_a_file_is_lines_with_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    report(console.progress())
    assert lines(capsys) == [
        "fibers: 2 fibers",
        "train: 500 steps",
        "step 120/500  train_loss 2.913  8,136 tokens/s, "
        "north → west 224 Mb/s → east 0 b/s, south → west 1.5 Mb/s → east 2 Mb/s",
        "cut north: began (f1)",
        "a note",
    ], "of two ticks at once the second is left out"


def test_progress_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    console.configure(quiet=True)
    report(console.progress())
    console.say("a hint")
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal of 100 columns in place of stderr."""
    text = io.StringIO()
    drawn = Console(file=text, force_terminal=True, width=100, height=30, color_system=None, markup=False)
    monkeypatch.setattr(console, "err", lambda: drawn)
    return text


def shows(terminal: io.StringIO, *patterns: str) -> None:
    text = terminal.getvalue()
    assert [pattern for pattern in patterns if not re.search(pattern, text)] == [], text


def test_progress_on_a_terminal_keeps_finished_phases(terminal: io.StringIO) -> None:
    progress = console.progress()
    assert isinstance(progress, console.Drawn)
    report(progress)
    shows(terminal, r" ✓ fibers +0\.\d\d s  2 fibers", r" ✓ train +0\.\d\d s  500 steps", r"cut north: began \(f1\)")
    text = terminal.getvalue()
    assert -1 < text.rfind("\x1b[?25l") < text.rfind("\x1b[?25h"), "the cursor is shown again"


def test_progress_on_a_terminal_marks_the_phase_that_failed(terminal: io.StringIO) -> None:
    with pytest.raises(ValueError, match="broken"), console.progress() as progress:
        progress.phase("plan")
        progress.phase("fibers")
        raise ValueError("broken")
    shows(terminal, " ✓ plan", " ✗ fibers")


def interrupt(error: BaseException) -> None:
    with pytest.raises(type(error)), console.progress() as progress:
        progress.phase("train", "500 steps")
        progress.ended("interrupted")
        progress.phase("report")
        progress.phase("down", "lab x")
        progress.ended("done")
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("interrupted; everything was undone")])
def test_progress_marks_what_was_interrupted_and_not_the_undo_that_succeeded(
    terminal: io.StringIO, error: BaseException
) -> None:
    interrupt(error)
    shows(terminal, r" ■ train +0\.\d\d s  interrupted: 500 steps", " ✓ report", r" ✓ down +0\.\d\d s  lab x")
    assert not re.search(r"✗|■ down", terminal.getvalue())


def test_progress_marks_an_unfinished_phase_as_interrupted(terminal: io.StringIO) -> None:
    with pytest.raises(KeyboardInterrupt), console.progress() as progress:
        progress.phase("certify")
        raise KeyboardInterrupt
    shows(terminal, " ■ certify")


def test_progress_in_a_file_has_a_line_for_a_phase_that_was_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    interrupt(KeyboardInterrupt())
    assert lines(capsys) == ["train: 500 steps", "train: interrupted", "report", "down: lab x"]


def test_a_receiver_of_older_programs_need_not_know_how_phases_end() -> None:
    class Old:
        def __init__(self) -> None:
            self.phases: list[str] = []

        def phase(self, name: str, detail: str = "") -> None:
            self.phases.append(name)

    old = Old()
    progress = Unbreakable(old)  # type: ignore[arg-type]
    progress.phase("train")
    progress.ended("interrupted")
    progress.phase("down")
    assert old.phases == ["train", "down"]


def test_progress_on_a_terminal_draws_step_loss_rates_and_faults(terminal: io.StringIO) -> None:
    progress = console.Drawn()
    progress.phase("train", "500 steps")
    progress.tick(STATE)
    console.err().print(progress.draw())
    shows(
        terminal,
        "step 120/500",
        "train_loss 2.913",
        "8,136 tokens/s",
        "north → west 224 Mb/s → east 0 b/s",
        "cut north",
    )


MOVING = {"north:west": 120e6, "north:east": 0.0}


@table(
    "state, line",
    {
        "little is known yet": (LiveState(0, 500), "step 0/500"),
        "rates at full scale": (
            LiveState(steps=None, throughput_bps=MOVING, scale=1000.0),
            "step 0, north → west 120 Mb/s for 120 Gb/s → east 0 b/s",
        ),
        "rates at scale 1": (
            LiveState(steps=None, throughput_bps=MOVING),
            "step 0, north → west 120 Mb/s → east 0 b/s",
        ),
    },
)
def test_progress_in_a_file_shows_what_is_known(
    capsys: pytest.CaptureFixture[str], state: LiveState, line: str
) -> None:
    console.Plain().tick(state)
    assert lines(capsys) == [line]


def test_progress_shows_the_busiest_of_many_links(capsys: pytest.CaptureFixture[str]) -> None:
    rates = {f"link{number}:west": float(number) * 1e6 for number in range(1, 101)}
    console.Plain().tick(LiveState(throughput_bps=rates))
    (line,) = lines(capsys)
    _, *links = line.split(", ")
    assert len(links) == console.MOST_LINKS_SHOWN + 1
    assert (links[0], links[-1]) == ("link100 → west 100 Mb/s", "and 92 more links")
