"""Progress: lines in a file, redrawn on a terminal, nothing with -q."""

from __future__ import annotations

import io
import re

import pytest
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


def tell(progress: console.Quiet) -> None:
    """A short run, as the library tells it."""
    with progress:
        progress.phase("fibers", "2 fibers")
        progress.phase("train", "500 steps")
        progress.tick(STATE)
        progress.tick(STATE)
        progress.event("cut north: began (f1)")
        progress.note("a note")


def test_in_a_file_there_are_lines_with_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    tell(console.progress())
    said = capsys.readouterr()
    assert said.out == "", "progress is no result"
    assert "\x1b" not in said.err
    texts = []
    for line in said.err.splitlines():
        matched = re.fullmatch(r"\[ *\d+\.\d\d s\] (.*)", line)
        assert matched, line
        texts.append(matched[1])
    assert texts == [
        "fibers: 2 fibers",
        "train: 500 steps",
        "step 120/500  train_loss 2.913  8,136 tokens/s, "
        "north → west 224 Mb/s → east 0 b/s, south → west 1.5 Mb/s → east 2 Mb/s",
        "cut north: began (f1)",
        "a note",
    ], "of two ticks at once the second is left out"


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    console.configure(quiet=True)
    tell(console.progress())
    console.say("a hint")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal of 100 columns in place of stderr."""
    text = io.StringIO()
    drawn = Console(file=text, force_terminal=True, width=100, height=30, color_system=None, markup=False)
    monkeypatch.setattr(console, "err", lambda: drawn)
    return text


def test_on_a_terminal_finished_phases_stay(terminal: io.StringIO) -> None:
    progress = console.progress()
    assert isinstance(progress, console.Drawn)
    tell(progress)
    text = terminal.getvalue()
    assert re.search(r" ✓ fibers +0\.\d\d s  2 fibers", text)
    assert re.search(r" ✓ train +0\.\d\d s  500 steps", text)
    assert "cut north: began (f1)" in text
    assert -1 < text.rfind("\x1b[?25l") < text.rfind("\x1b[?25h"), "the cursor is shown again"


def test_on_a_terminal_the_phase_that_failed_is_marked(terminal: io.StringIO) -> None:
    with pytest.raises(ValueError, match="broken"), console.progress() as progress:
        progress.phase("plan")
        progress.phase("fibers")
        raise ValueError("broken")
    text = terminal.getvalue()
    assert re.search(r" ✓ plan", text)
    assert re.search(r" ✗ fibers", text)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("interrupted; everything was undone")])
def test_after_ctrl_c_what_was_interrupted_is_marked_and_not_the_undo_that_succeeded(
    terminal: io.StringIO, error: BaseException
) -> None:
    with pytest.raises(type(error)), console.progress() as progress:
        progress.phase("train", "500 steps")
        progress.ended("interrupted")
        progress.phase("report")
        progress.phase("down", "lab x")
        progress.ended("done")
        raise error
    text = terminal.getvalue()
    assert re.search(r" ■ train +0\.\d\d s  interrupted: 500 steps", text)
    assert re.search(r" ✓ report", text) and re.search(r" ✓ down +0\.\d\d s  lab x", text)
    assert "✗" not in text
    assert not re.search(r"[■✗] down", text)


def test_an_unfinished_phase_was_interrupted_if_the_command_was(terminal: io.StringIO) -> None:
    with pytest.raises(KeyboardInterrupt), console.progress() as progress:
        progress.phase("certify")
        raise KeyboardInterrupt
    assert re.search(r" ■ certify", terminal.getvalue())


def test_in_a_file_a_phase_that_was_not_done_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), console.progress() as progress:
        progress.phase("train")
        progress.ended("interrupted")
        progress.phase("down", "lab x")
        progress.ended("done")
        raise KeyboardInterrupt
    said = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said == ["train", "train: interrupted", "down: lab x"]


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


def test_what_is_drawn_while_a_job_runs(terminal: io.StringIO) -> None:
    progress = console.Drawn()
    progress.phase("train", "500 steps")
    progress.tick(STATE)
    console.err().print(progress._draw())
    text = terminal.getvalue()
    for words in (
        "step 120/500",
        "train_loss 2.913",
        "8,136 tokens/s",
        "north → west 224 Mb/s → east 0 b/s",
        "cut north",
    ):
        assert words in text


def test_of_many_links_the_busiest_are_shown() -> None:
    many = {f"link{number}:west": float(number) * 1e6 for number in range(1, 101)}
    words = console._fiber_lines(LiveState(throughput_bps=many))
    assert len(words) == console.MOST_LINKS_SHOWN + 1
    assert words[0] == "link100 → west 100 Mb/s"
    assert words[-1] == "and 92 more links"


def test_a_state_of_which_little_is_known_yet() -> None:
    assert console._training_line(LiveState(0, 500)) == "step 0/500"
    assert console._fiber_lines(LiveState(0, 500)) == []
