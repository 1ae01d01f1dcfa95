"""The pytest plugin with real labs: fixtures, output of a failure, and no leftovers, however a test ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders import ROOT
from builders.commands import captured
from builders.conditions import ALONE, thorough
from oracles import oracle

PLUGIN = ("-p", "testbed.pytest_plugin")

pytest_plugins = ["pytester"]
pytestmark = ALONE


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other plugins of this machine have no say, nor has a testbed that is installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def labs(state_folder: Path) -> list[str]:
    folder = state_folder / "labs"
    return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


def run(pytester: pytest.Pytester, state_folder: Path, *words: str, timeout_s: float = 120) -> pytest.RunResult:
    result = pytester.runpytest_subprocess(*PLUGIN, "-rs", "--testbed-require", *words, timeout=timeout_s)
    assert labs(state_folder) == []
    return result


@pytest.mark.thorough
def test_labs_ranks_and_faults(pytester: pytest.Pytester, state_folder: Path) -> None:
    pytester.makepyfile("""
        import functools, os, time
        import pytest

        pytestmark = pytest.mark.testbed("metro-40km", set={"links.north.km": 80})
        seen = {}

        def who(number, *, word="none"):
            return int(os.environ["RANK"]), os.uname().nodename, os.environ["TESTBED_SITE"], number, word

        def ticking(times):
            for tick in range(times):
                print("tick", tick, flush=True)
                time.sleep(0.02)
            return times

        def lit(lab):
            return [all(link.carrier.values()) for link in lab.status().links]

        @pytest.fixture(scope="module")
        def for_the_module(module_lab):
            return module_lab.name

        def test_a_rank_on_each_node_with_its_environment(lab, ranks):
            seen["name"] = lab.name
            assert lab.certificate.certified and lab.topology.links[0].length_m == 80e3
            assert len(ranks) == 4
            assert ranks(functools.partial(who, 7), word="a") == tuple(
                (rank, node, node[:4], 7, "a") for rank, node in enumerate(["east-0", "east-1", "west-0", "west-1"])
            )

        def test_a_fault_stands_while_the_ranks_go_on(lab, ranks):
            job = ranks.start(ticking, 60)
            job.wait_for("tick 5", of_all=True)
            with lab.cut("north") as cut:
                job.wait_for("tick 15")
                assert lit(lab) == [False, True]
            assert cut.ended is not None and lit(lab) == [True, True]
            assert job.results() == (60,) * 4

        def test_leaves_a_fault(lab):
            lab.cut("north")
            lab.inject("impair", "south", loss="1%")

        def test_a_lab_is_healed_after_each_test_and_shared(lab, for_the_module):
            assert seen["name"] == lab.name == for_the_module
            assert lit(lab) == [True, True]
            assert [fault.ended is None for fault in lab.faults()] == [False] * len(lab.faults())

        def test_a_lab_that_broke(lab):
            lab.down()

        def test_is_replaced(lab):
            assert seen["name"] != lab.name and lit(lab) == [True, True]

        def test_a_program_and_what_it_printed(ranks, tmp_path):
            script = tmp_path / "script.py"
            script.write_text("import os, sys; print(os.environ['RANK'], *sys.argv[1:])")
            assert ranks.program(script, "a", "b") == tuple(f"{rank} a b" for rank in range(4))

        def test_one_thing_at_a_time_and_what_is_left_is_ended(ranks):
            ranks.start(ticking, 10**6)
            with pytest.raises(Exception, match="still running a job"):
                ranks(who, 1)

        @pytest.mark.testbed("metro-40km", "intra-metro-5km")
        def test_one_run_for_each_topology(lab, request):
            assert f"[{lab.topology.name}]" in request.node.name

        @pytest.mark.testbed(scope="module")
        @pytest.mark.parametrize("lab", ["intra-metro-5km"], indirect=True)
        def test_a_parameter_names_the_topology(lab):
            assert lab.topology.name == "intra-metro-5km"
    """)
    result = run(pytester, state_folder)
    result.assert_outcomes(passed=11)


@pytest.mark.thorough
def test_what_fails_says_where_and_x_takes_the_lab_down(pytester: pytest.Pytester, state_folder: Path) -> None:
    pytester.makepyfile("""
        import os, time
        import pytest
        from testbed.pytest_plugin import RanksFailed

        class Odd(Exception):
            pass

        def fails(rank):
            if int(os.environ["RANK"]) == rank:
                raise Odd(f"no luck on {os.uname().nodename}")
            time.sleep(0.2)
            return rank

        def hangs():
            time.sleep(60)

        def ends():
            os.kill(os.getpid(), 9)

        def test_failures_are_values(ranks):
            with pytest.raises(RanksFailed) as raised:
                ranks(fails, 2)
            failure = raised.value.failures[2]
            assert list(raised.value.failures) == [2] and raised.value.results == {0: 2, 1: 2, 3: 2}
            assert isinstance(failure.error, Odd) and failure.node == "west-0" and failure.status == 1

        def test_a_rank_that_hangs_says_where(ranks):
            with pytest.raises(RanksFailed, match="took longer than 1 s") as raised:
                ranks(hangs, within_s=1)
            assert "in hangs" in raised.value.failures[0].text

        def test_a_rank_that_dies(ranks):
            with pytest.raises(RanksFailed, match="signal 9"):
                ranks(ends)

        def test_a_function_that_no_rank_can_find(ranks):
            with pytest.raises(Exception, match="define it at the top"):
                ranks(lambda: 1)

        def test_fails(lab, ranks):
            lab.cut("north")
            ranks(fails, 3)

        def test_never_comes(lab):
            pass
    """)
    result = run(pytester, state_folder, "-x")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*RanksFailed: 1 of 4 ranks failed, first rank 3 on west-1: *Odd: no luck on west-1",
            "E*raise Odd*",
            "*testbed: lab pt-*",
            "topology metro-40km, certified",
            "fault f1: cut north, active",
            "run directory: */pt-*",
        ]
    )
    result.stdout.no_fnmatch_line("*ranks.py*")


def test_a_fixture_that_fails_on_top_of_a_lab(pytester: pytest.Pytester, state_folder: Path) -> None:
    pytester.makepyfile("""
        import pytest

        pytestmark = pytest.mark.testbed(scope="session")

        @pytest.fixture
        def broken(lab):
            lab.cut("north")
            raise RuntimeError("broken")

        def test_it(broken):
            pass

        def test_after(lab, session_lab):
            assert all(all(link.carrier.values()) for link in lab.status().links)
            assert session_lab is lab
    """)
    result = run(pytester, state_folder)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*testbed: lab pt-*"])


def test_the_example_suite_of_the_docs(state_folder: Path) -> None:
    argv = [sys.executable, "-m", "pytest", *PLUGIN, "-q", "--testbed-require", str(ROOT / "examples" / "pytest_suite")]
    done = captured(argv, timeout=180, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
    assert labs(state_folder) == []


SLOW = """
    import os, pathlib, time

    import pytest

    @pytest.mark.parametrize("number", range(2))
    def test_slow(lab, number):
        pathlib.Path("up-" + lab.name).touch()
        time.sleep(120)
"""


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGTERM, 0),
        *(
            thorough(*case)
            for case in ((signal.SIGINT, 0), (signal.SIGKILL, 0), (signal.SIGINT, 2), (signal.SIGTERM, 2))
        ),
    ],
)
def test_a_signal_leaves_no_lab(pytester: pytest.Pytester, state_folder: Path, number: int, workers: int) -> None:
    """SIGKILL, and the SIGTERM that xdist does not pass on, are for the guard."""
    pytester.makepyfile(SLOW)
    words = ["-p", "xdist", "-n", str(workers)] if workers else []
    running = pytester.popen(
        [sys.executable, "-m", "pytest", *PLUGIN, "--testbed-require", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        oracle.until(lambda: len(list(pytester.path.glob("up-*"))) == max(1, workers), 60.0, "labs are up")
        assert len(labs(state_folder)) == max(1, workers)
        running.send_signal(number)
        running.wait(60)
    finally:
        running.kill()
        running.wait(10)
    oracle.until(lambda: labs(state_folder) == [], 30.0, "a lab was left")
    if number == signal.SIGTERM and not workers:
        assert running.returncode == pytest.ExitCode.INTERRUPTED


@pytest.mark.thorough
def test_workers_of_xdist_have_labs_of_their_own(pytester: pytest.Pytester, state_folder: Path) -> None:
    pytester.makepyfile(
        **{
            f"test_{letter}": """
            import pathlib

            def test_one(lab, ranks):
                pathlib.Path("lab-" + lab.name).touch()
                assert ranks(int) == (0,) * 4
        """
            for letter in "abcd"
        }
    )
    result = run(pytester, state_folder, "-p", "xdist", "-n", "2")
    result.assert_outcomes(passed=4)
    names = [each.name for each in pytester.path.glob("lab-*")]
    assert len(names) == 4 and all("-gw0-" in name or "-gw1-" in name for name in names)
