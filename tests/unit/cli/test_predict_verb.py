"""``testbed predict`` on the command line: figures, the least rate, tables, refusals by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from builders import run_factory
from builders.cli_fixtures import Call, Cli, cli
from builders.tables import table
from typer.testing import CliRunner

import testbed
from testbed.cli import app, console
from testbed.core.training.strategies_built import BUILT

__all__ = ["cli"]  # a fixture

FAR = "--strategy diloco:every=100 --rate 10G --delay 5ms"
DILOCO_GBIT = 320.0
"""Of an exchange of DiLoCo: 10 billion values of 32 bits in each direction."""


def invoke(line: str) -> Any:
    return CliRunner().invoke(app.app, f"predict {line}")


def run(line: str) -> str:
    result = invoke(line)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def as_json(line: str) -> Any:
    return json.loads(run(f"{line} --json"))


@pytest.mark.parametrize("name", sorted(BUILT))
def test_each_strategy_is_predicted_by_its_name(name: str) -> None:
    found = as_json(f"--strategy {name}")
    assert found["strategy"] == name
    assert 0 < found["utilization"] <= 1 + 1e-9 and found["bits_per_step"] > 0
    assert found["step_s"] == pytest.approx(found["compute_s"] + sum(found["exposed"].values()), rel=1e-6)
    assert f"Predicted: {name}" in run(f"--strategy {name}")


@table(
    "line, expected",
    {
        "nothing: data parallel, two sites of one rank, 40 km": (
            "",
            {"sites": 2, "ranks_per_site": 1, "delay_s": 200e-6, "rate_bps": 100e9, "layers": 24, "parameters": 10e9},
        ),
        "a topology": (
            "metro-40km",
            {"sites": 2, "ranks_per_site": 2, "delay_s": 200e-6, "rate_bps": 800e9 * 1448 / 1538, "scale": 1000},
        ),
        "a topology, changed": (
            "metro-40km --set links.north.km=80 --set links.south.km=90",
            {"delay_s": 400e-6},
        ),
        "a topology, rate and delay in place of its own": (
            "metro-40km --delay 1ms --rate 50G",
            {"delay_s": 1e-3, "rate_bps": 50e9},
        ),
        "sites that are alike": (
            "--sites 3 --ranks-per-site 50021 --compute 2s --model 20B --layers 32",
            {
                "sites": 3, "ranks_per_site": 50021, "layers": 32, "parameters": 20e9,
                "steps_s": {"site-1": 2.0, "site-2": 2.0, "site-3": 2.0},
            },
        ),
        "the model that computes in a time": (
            "--compute real:80ms", {"layers": 4, "steps_s": {"site-1": 0.08, "site-2": 0.08}},
        ),
    },
)  # fmt: skip
def test_the_job_is_what_the_words_say(line: str, expected: dict[str, Any]) -> None:
    job = as_json(line)["job"]
    for name, value in expected.items():
        assert job[name] == pytest.approx(value, rel=1e-3), name


def test_an_experiment_gives_its_topology_and_workload(tmp_path: Path) -> None:
    file = tmp_path / "far.yaml"
    file.write_text(
        "topology: metro-40km\nworkload: {strategy: diloco, every: 20, compute: 100ms, model: 2B, steps: 40}\n"
    )
    found = as_json(str(file))
    assert (found["strategy"], found["options"]["every"], found["compute_s"]) == ("diloco", 20, 0.1)
    assert found["job"]["parameters"] == pytest.approx(2e9, rel=1e-3) and found["job"]["ranks_per_site"] == 2
    assert as_json(f"{file} --strategy diloco:every=40")["options"]["every"] == 40


def test_an_exchange_is_its_bits_its_distance_and_its_software() -> None:
    found = as_json(FAR)
    exposed = {name: 100 * seconds for name, seconds in found["exposed"].items()}
    assert exposed["serialization_s"] == pytest.approx(DILOCO_GBIT / 10, rel=1e-3)
    assert exposed["propagation_s"] == pytest.approx(5e-3)
    assert 0 < exposed["software_s"] < 0.1
    assert found["bits_per_step"] == pytest.approx(DILOCO_GBIT * 1e9 / 100, rel=1e-3)
    assert found["exchange"]["bits"] == pytest.approx(DILOCO_GBIT * 1e9, rel=1e-3)
    assert found["limit"] == "rate"


def test_least_rate_reaches_its_target() -> None:
    found = as_json("--strategy diloco:every=100 --delay 5ms --target 0.9")
    assert found["utilization"] == pytest.approx(0.9, abs=1e-3)
    again = as_json(f"--strategy diloco:every=100 --delay 5ms --rate {found['rate_bps']:.6g}bps")
    assert again["utilization"] == pytest.approx(0.9, abs=1e-3)
    assert "least payload rate for 90 %" in run("--strategy diloco:every=100 --delay 5ms --target 0.9")


def test_out_of_reach_is_said_and_null_in_json() -> None:
    far = "--ranks-per-site 8 --compute 50ms --model 10B --delay 50ms --target 0.9"
    assert "out of reach at any rate: distance limits" in run(far)
    found = as_json(far)
    assert found["rate_bps"] is None and found["job"]["rate_bps"] is None  # JSON has no infinity
    assert "any rate of payload" in run(far)


def test_what_never_waits_has_a_least_rate_by_the_age_of_its_updates() -> None:
    words = "--strategy decoupled --target 0.9 --merge-within"
    near, far = (as_json(f"{words} {within}") for within in ("50s", "5min"))
    assert near["merges"]["age_s"] <= 50 and far["merges"]["age_s"] <= 300
    assert near["rate_bps"] > far["rate_bps"] > 0
    assert "age of updates" in run("--strategy decoupled")


def test_a_slow_fiber_makes_sites_wait_that_may_run_ahead() -> None:
    """They run ahead of the first pushes, which is not their steady state."""
    found = as_json("--strategy async-diloco:every=1 --rate 200G")
    assert found["utilization"] == pytest.approx(0.8 / (DILOCO_GBIT / 200), rel=0.01)


def test_as_published_is_a_cell_of_the_paper() -> None:
    found = as_json(
        "--strategy streaming-diloco:every=100,fragments=16,overlap=0 --model 10B --layers 48 --compute 800ms"
        " --delay 0s --target 0.9 --as-published"
    )
    grid = [round(10 ** (-1 + 4 * i / 49), 2) for i in range(50)]
    assert round(next(rate for rate in grid if rate * 1e9 >= found["rate_bps"]), 1) == 9.1  # Table 4
    assert as_json("--strategy diloco --as-published")["exposed"]["propagation_s"] == 0, "a lane without latency"


@table(
    "line, values",
    {
        "kilometres": ("--over km=5..9000", ["5 km", "9000 km"]),
        "a rate": ("--over rate=10G..1T", ["10 Gb/s", "1 Tb/s"]),
        "a delay": ("--over delay=1ms..50ms", ["1 ms", "50 ms"]),
        "compute": ("--compute 1s --model 10B --over compute=100ms..4s", ["100 ms", "4 s"]),
        "a model": ("--over model=1B..100B", ["1e+09", "1e+11"]),
        "an option of the strategy": ("--strategy diloco --over every=10..500", ["10", "500"]),
        "an option with a point in its name": ("--strategy diloco --over outer.rate=1..3", ["1", "3"]),
        "an option of a few values": ("--strategy streaming-diloco --over bits=4..32", ["4", "8", "16", "32"]),
        "the least rate": ("--strategy diloco --over km=5..9000 --target 0.9", ["5 km", "least rate for 90 %"]),
    },
)
def test_over_makes_a_table(line: str, values: list[str]) -> None:
    text = run(line)
    for value in values:
        assert value in text


def test_two_axes_make_a_table() -> None:
    text = run("--over km=5..9000 --over rate=10G..1T")
    assert "5 km" in text and "9000 km" in text and "10 Gb/s" in text
    rows = as_json("--over km=5..9000 --over rate=10G..1T")
    assert len(rows) == 49
    shares = [row["utilization"] for row in rows]
    assert shares[0] < shares[6], "the rate is the second axis"
    assert shares[6] > shares[48], "and kilometres the first"


def test_rows_of_a_table_name_where_they_are() -> None:
    rows = as_json("--strategy diloco --over every=1..3 --over km=5..50")
    assert [row["over"]["every"] for row in rows[::7]] == [1, 2, 3]
    assert [row["options"]["every"] for row in rows[::7]] == [1, 2, 3]
    assert rows[0]["over"]["delay_s"] == pytest.approx(25e-6)


def test_a_heat_map_is_written(tmp_path: Path) -> None:
    for name in ("map.svg", "map.html"):
        run(f"--over km=5..9000 --over rate=10G..1T --picture {tmp_path / name}")
        drawn = (tmp_path / name).read_text()
        tree = ElementTree.fromstring(drawn[drawn.index("<svg") : drawn.index("</svg>") + 6])
        texts = [str(element.text) for element in tree.iter("{http://www.w3.org/2000/svg}text")]
        assert len([text for text in texts if text.endswith(" %")]) == 49
        assert "9000 km" in texts


def test_a_timeline_is_a_chrome_trace(tmp_path: Path) -> None:
    run(f"{FAR} --timeline {tmp_path / 'trace.json'}")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    sent = [it for it in events if it["ph"] == "X" and it["cat"] == "serialization"]
    assert sent and sent[0]["dur"] == pytest.approx(DILOCO_GBIT / 10 * 1e6, rel=1e-3)


@table(
    "words, rate_bps",
    {
        "a window": ("--window 6MB", 4.8e9),
        "several connections": ("--window 6MB --connections 4", 19.2e9),
        "loss": ("--loss 0.01%", 141.9e6),
        "a window that is large enough": ("--window 1GB", 100e9),
    },
)
def test_windows_and_loss_of_tcp_limit_the_rate(words: str, rate_bps: float) -> None:
    found = as_json(f"--strategy diloco:every=100 --rate 100G --delay 5ms {words}")
    assert found["job"]["rate_bps"] == pytest.approx(rate_bps, rel=1e-3)


def test_slow_start_after_idle_is_told_and_can_be_added() -> None:
    cold_s = as_json(FAR)["exchange"]["cold_start_s"]
    assert cold_s == pytest.approx(10e-3 * 10)  # 8,633 packets of 1448 bytes fill the pipe, from 10: ten doublings
    warm, cold = (as_json(f"{FAR} {option}")["exposed"]["tcp_s"] for option in ("", "--cold-start"))
    assert (warm, cold) == (0, pytest.approx(cold_s / 100))


def test_failures_add_goodput_and_the_best_interval() -> None:
    found = as_json("--strategy diloco:every=100 --mtbf 3h --checkpoint 30s --restart 5min")
    assert found["goodput"] < found["utilization"]
    assert found["best_checkpoint_interval_s"] == pytest.approx((2 * 30 * 3 * 3600) ** 0.5, rel=0.05)
    assert as_json("--mtbf 3h --checkpoint-every 10s")["goodput"] < as_json("--mtbf 3h")["goodput"]


def test_failures_come_from_accelerators_sites_and_fibers() -> None:
    words = "metro-single --mtbf-rank 5.78y --mtbf-site 1y --cuts 2.13 --repair 12h"
    found = as_json(words)["failures"]
    assert found["failures_per_year"]["accelerators"] == pytest.approx(4 / 5.78)
    assert found["failures_per_year"]["sites"] == pytest.approx(2)
    assert found["failures_per_year"]["fibers"] == pytest.approx(2.13 * 40 / 1000)
    assert 1 - found["route_availability"] == pytest.approx(1.166e-4, rel=1e-3)  # claim 61: 40 km, 12 h
    two = as_json(words.replace("metro-single", "metro-40km"))["failures"]
    assert (two["routes"], two["failures_per_year"]["fibers"]) == (2, 0)  # each route bypasses the other
    assert 1 - two["route_availability"] < 1e-7
    text = run(words)
    assert "goodput, elastic" in text and "goodput, decoupled" in text and "1 route east - west" in text
    assert as_json("metro-40km")["failures"] is None


def test_energy_is_bits_times_joules_and_waiting_times_watts() -> None:
    words = f"{FAR} --ranks-per-site 8"
    found = as_json(f"{words} --joules-per-bit 50e-12 --idle-watts 100")
    exposed_s = sum(found["exposed"].values())
    assert found["energy_j"]["exchange"] == pytest.approx(2 * DILOCO_GBIT * 1e9 * 50e-12 / 100, rel=1e-3)
    assert found["energy_j"]["waiting"] == pytest.approx(16 * exposed_s * 100)
    assert "J to send" in run(f"{words} --idle-watts 100")
    assert as_json(words)["energy_j"] is None


def test_energy_by_class_of_path() -> None:
    words = "metro-40km --strategy hierarchical --joules-per-bit metro=50e-12 --joules-per-bit fabric=5e-12"
    by_class = as_json(words)["energy_j"]["by_class"]
    assert by_class["metro"] == pytest.approx(2 * DILOCO_GBIT * 1e9 * 50e-12, rel=1e-3)
    assert by_class["fabric"] > 0
    assert "metro 32 J" in run(words)


def test_a_single_site_has_no_exchange() -> None:
    found = as_json("--sites 1")
    assert (found["utilization"], found["groups"]["wire_kappa"], found["exchange"]) == (pytest.approx(1), 0.0, None)
    assert "unlimited" not in run("--sites 1")
    assert "1 site of 1 rank," in invoke("--sites 1").stderr


def test_the_similar_lab_has_the_same_groups_and_says_if_the_cores_cannot_carry_it() -> None:
    lab = as_json("--rate 100G --delay 5ms --lab-step-time 50ms")["similar_lab"]
    assert (lab["delay_s"], lab["rate_bps"]) == (pytest.approx(5e-3 / 16), pytest.approx(100e9 * 16 / 1000))
    assert "CPU-bound here" in run("--ranks-per-site 500 --lab-step-time 50ms")


def test_every_prediction_has_its_similar_lab_and_says_what_is_not_similar() -> None:
    text = run("metro-40km --strategy diloco:every=100")
    assert "similar lab: 50 ms a step, 12.5 us one way (2.5 km), 12.1 Gb/s of payload at scale 1000" in text
    assert "stands for 16 times its distance: 640 km, 47.1 Gb/s of payload" in text
    assert "TCP's loss and windows are not similar" in text
    found = as_json("metro-40km --strategy diloco:every=100")["similar_lab"]
    assert (found["phi"], found["stands_for"]["length_m"]) == (pytest.approx(16), pytest.approx(640e3))
    assert found["cpu_bound"] is True or found["cpu_share"] <= 1
    table_text = run("--over km=5..9000 --over rate=10G..1T")
    assert "phi 16" in table_text and "are not similar" in table_text


def test_quality_is_that_of_publications_and_never_ours() -> None:
    found = as_json("--strategy diloco:every=100")["published_quality"]
    assert all(quality["source"] for quality in found)
    assert any(quality["kind"] == "fitted law" for quality in found)
    text = run("--strategy diloco:every=100")
    assert text.count("published, not predicted: ") == len(found)
    assert as_json("--strategy moe")["published_quality"] == []


def test_measured_predicts_the_job_of_a_run(tmp_path: Path) -> None:
    folder = run_factory.make_run(tmp_path / "run")
    found = as_json(f"--measured {folder}")
    assert (found["job"]["sites"], found["job"]["ranks_per_site"]) == (2, 2)
    assert found["compute_s"] == pytest.approx(run_factory.COMPUTE_S, rel=0.2)
    assert "the run measured" in run(f"--measured {folder}")
    other = as_json(f"--measured {folder} --strategy diloco:every=7")
    assert (other["strategy"], other["options"]["every"]) == ("diloco", 7)


def test_prediction_progress_counts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "SILENT_S", 0.0)
    with console.Counter("predictions", 3) as counted:
        assert [counted(name) for name in "abc"] == ["a", "b", "c"]
    assert "1 of 3 predictions" in capsys.readouterr().err


MANY = 10**400
TWO_AXES = "--over km=5..9 --over rate=1G..9G"


@table(
    "line, expected",
    {
        "unknown strategy": ("--strategy dilocco", "--strategy: strategy of the workload: unknown strategy 'dilocco'"),
        "an option below its range": ("--strategy diloco:every=0", "every of strategy diloco: expected a whole number"),
        "an option that is no number": ("--strategy diloco:every=x", "every of strategy diloco: expected a whole"),
        "an option of another strategy": ("--strategy ddp:every=2", "--strategy: strategy ddp has no every"),
        "a key of the workload": ("--strategy diloco:batch=4", "--strategy: batch belongs to the workload"),
        "an option without a value": ("--strategy diloco:every", "--strategy: expected KEY=VALUE, got 'every'"),
        "more overlap than steps": ("--strategy streaming-diloco:every=4,overlap=4", "--strategy: overlap"),
        "more fragments than layers": ("--strategy streaming-diloco:every=99,fragments=25", "--strategy: fragments"),
        "a quorum of more sites": ("--strategy decoupled:quorum=3", "a quorum of 3 among 2 sites"),
        "a pipeline within a site": ("--sites 1 --strategy pipeline", "--strategy: stages: expected as many stages"),
        "heads that ranks do not divide": ("--strategy tensor --ranks-per-site 7", "--strategy: strategy: expected"),
        "no site": ("--sites 0", "--sites must be from 1 to 256, got 0"),
        "too many sites": ("--sites 257", "--sites must be from 1 to 256, got 257"),
        "no rank": ("--ranks-per-site 0", "--ranks-per-site must be from 1 to 1000000000, got 0"),
        "a number of 400 digits": (f"--ranks-per-site {MANY}", "--ranks-per-site must be from 1 to 1000000000, got a"),
        "no layer": ("--layers 0", "--layers: layers of the workload: 0 is out of range"),
        "too many layers": ("--layers 1001", "--layers: layers of the workload: 1001 is out of range"),
        "layers that are no number": ("--layers nan", "--layers"),
        "a model below its layers": ("--model 1", "--model: a model of 1 parameters"),
        "a model that is no number": ("--model nan", "--model: model of the workload: expected a number, got 'nan'"),
        "a model without an end": ("--model 1e400", "--model: model of the workload: expected a finite number"),
        "compute without a time": ("--compute real", "--compute: expected the time of a step, got 'real'"),
        "compute of no time": ("--compute 0s", "--compute: compute of the workload: expected a time above 0"),
        "compute that is no time": ("--compute inf", "--compute: compute of the workload: expected a time, got 'inf'"),
        "a rate that is none": ("--rate fast", "--rate: expected a rate"),
        "no rate": ("--rate 0", "--rate: '0' is out of range"),
        "a rate of nan": ("--rate nan", "--rate: expected a rate"),
        "a delay of nan": ("--delay nan", "--delay: expected a time, got 'nan'"),
        "a negative delay": ("--delay -1ms", "--delay: '-1ms' is out of range"),
        "a whole as the target": ("--target 1", "--target must be greater than 0 and less than 1, got 1"),
        "a target of nan": ("metro-40km --target nan", "--target must be greater than 0 and less than 1, got nan"),
        "a target where no site waits": ("--strategy decoupled --target 0.9", "so --target needs --merge-within"),
        "an age where sites wait": ("--target 0.9 --merge-within 60s", "--merge-within needs --target, and a strategy"),
        "an age without a target": ("--strategy decoupled --merge-within 60s", "--merge-within needs --target"),
        "an unknown axis": ("--over miles=1..2", "--over: expected K=A..B with K one of km"),
        "an axis without an end": ("--over km=5", "--over: expected K=A..B"),
        "an axis downwards": ("--over km=9..5", "--over km: expected a range from a lower to a higher value"),
        "an axis from nan": ("--over km=nan..5", "--over km: expected a length, got 'nan'"),
        "an option's axis without end": ("--strategy diloco --over every=1..inf", "--over every: expected a range"),
        "an option's axis below 1": ("--strategy diloco --over every=0.2..0.4", "--over every: expected a range of"),
        "an axis of words": ("--strategy diloco --over replica=1..3", "--over replica: expected a range of whole"),
        "an axis of another strategy": ("--over every=1..9", "--strategy: strategy ddp has no every"),
        "two axes of one input": ("--over km=5..9 --over delay=1ms..2ms", "--over km and --over delay vary the same"),
        "three axes": (f"{TWO_AXES} --over model=1B..2B", "--over may be given twice, got 3 times"),
        "the rate, with a target": ("--over rate=1G..9G --target 0.9", "--target looks for the rate"),
        "a picture of no table": ("--picture map.svg", "--picture needs two --over"),
        "a picture of another format": (f"{TWO_AXES} --picture map.png", "ends in .svg or .html"),
        "a timeline of a table": ("--over km=5..9 --timeline x.json", "--timeline needs one prediction"),
        "a timeline of another format": ("--timeline x.txt", "--timeline needs one prediction"),
        "no connection": ("--connections 0", "--connections"),
        "no window": ("--window 0", "--window must be greater than 0"),
        "a window that is none": ("--window x", "--window: expected a size"),
        "all packets lost": ("--loss 1", "--loss must be 0 or more and less than 1, got 1"),
        "no time between failures": ("--mtbf 0s", "--mtbf must be 0.001 s or more, got 0 s"),
        "the least float between failures": ("--mtbf 1e-320s", "--mtbf must be 0.001 s or more"),
        "a time of another unit": ("--mtbf '3 fortnights'", "--mtbf: expected a number and one of ms, s, min, h, d, y"),
        "no time between a rank's": ("--mtbf-rank 0s", "--mtbf-rank must be 0.001 s or more"),
        "a checkpoint of no time": ("--mtbf 3h --checkpoint 0s", "--checkpoint must be 0.001 s or more"),
        "a negative restart": ("--mtbf 3h --restart -3s", "--restart must be 0 or more and finite, got -3 s"),
        "checkpoints without failures": ("--checkpoint-every 10s", "--checkpoint-every needs --mtbf"),
        "fewer than no cuts": ("--cuts -1", "--cuts must be 0 or more and finite, got -1"),
        "cuts of nan": ("--cuts nan", "--cuts must be 0 or more and finite, got nan"),
        "a repair of no time": ("--cuts 2 --repair 0s", "--repair must be 0.001 s or more"),
        "watts of nan": ("--idle-watts nan", "--joules-per-bit and --idle-watts must be 0 or more, and finite"),
        "joules that are none": ("--joules-per-bit metro=cheap", "--joules-per-bit: expected J or CLASS=J"),
        "joules of an unknown class": ("--joules-per-bit ocean=1", "--joules-per-bit: unknown class of path 'ocean'"),
        "joules of another fiber": ("--joules-per-bit regional=1", "--joules-per-bit: expected a value for metro"),
        "a lab's step of no time": ("--lab-step-time 0s", "--lab-step-time must be greater than 0 and finite, got 0 s"),
        "an endless scale": ("--lab-scale inf", "--lab-scale must be from 0.001 to 1e+09, got inf"),
        "the least scale": ("--lab-scale 1e-300", "--lab-scale must be from 0.001 to 1e+09, got 1e-300"),
        "sites of a topology": ("metro-40km --sites 3", "--sites cannot be combined with a topology"),
        "ranks of a topology": ("metro-40km --ranks-per-site 3", "--ranks-per-site cannot be combined with a topology"),
        "a scale of a topology": ("metro-40km --lab-scale 3", "--lab-scale cannot be combined with a topology"),
        "changes of no topology": ("--set links.north.km=80", "--set needs a TOPOLOGY"),
        "changes of what a topology lacks": ("metro-40km --set nothing=80", "unknown field 'nothing'"),
        "an unknown topology": ("nosuch", "unknown topology or experiment 'nosuch'"),
        "a run that is none": ("--measured nosuch", "unknown run 'nosuch'"),
        "a validation that is none": ("--library nosuch", "unknown run 'nosuch'"),
    },
)  # fmt: skip
def test_predict_refuses_impossible_input_by_name(cli: Cli, line: str, expected: str) -> None:
    result = Call(f"predict {line}", 2, err=expected, folded=True).check(cli)
    assert "bug" not in result.err and "Traceback" not in result.err


def test_an_experiment_with_a_program_is_refused(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "program.yaml"
    file.write_text("topology: metro-40km\nworkload: {command: [sleep, '1']}\n")
    Call(f"predict {file}", 2, err="runs a program, of which no exchange is known", folded=True).check(cli)


def test_predict_in_python_is_the_same() -> None:
    found = testbed.predict("diloco:every=100", compute="800ms", model="10B", layers=48, rate_bps=5e9, delay_s=5e-3)
    words = "--strategy diloco:every=100 --compute 800ms --model 10B --layers 48 --rate 5G --delay 5ms"
    assert found.to_dict() == as_json(words) | {"similar_lab": None}
