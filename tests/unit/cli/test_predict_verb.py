"""``testbed predict`` on the command line: figures, the least rate, tables, refusals by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from builders.cli_fixtures import Call, Cli, cli
from typer.testing import CliRunner

import testbed
from testbed.cli import app, prediction_progress

__all__ = ["cli"]  # a fixture


def invoke(line: str) -> Any:
    return CliRunner().invoke(app.app, f"predict {line}")


def run(line: str) -> str:
    result = invoke(line)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def as_json(line: str) -> Any:
    return json.loads(run(f"{line} --json"))


def test_least_rate_is_a_cell_of_a_published_table() -> None:
    found = as_json(
        "--strategy streaming-diloco --parameters 10B --layers 48 --step-time 800ms --every 100 --fragments 16 "
        "--payload-factor 0.84 --overlap-last-backward --delay 0s --target 0.9"
    )
    grid = [round(10 ** (-1 + 4 * i / 49), 2) for i in range(50)]
    assert round(next(rate for rate in grid if rate * 1e9 >= found["rate_bps"]), 1) == 9.1  # Table 4, 10B, streaming
    assert found["utilization"] == pytest.approx(0.9, abs=1e-3)


def test_a_topology_gives_sites_ranks_rate_and_delay() -> None:
    inputs = as_json("metro-40km --strategy ddp")["inputs"]
    assert (inputs["sites"], inputs["ranks_per_site"], inputs["delay_s"]) == (2, 2, pytest.approx(200e-6))
    assert inputs["rate_bps"] == pytest.approx(800e9 * 1448 / 1538)
    farther = as_json("metro-40km --strategy ddp --set links.north.km=80 --set links.south.km=90")
    assert farther["inputs"]["delay_s"] == pytest.approx(400e-6)
    assert as_json("metro-40km --delay 1ms")["inputs"]["delay_s"] == pytest.approx(1e-3)


def test_two_axes_make_a_table() -> None:
    text = run("--strategy ddp --over km=5..9000 --over rate=10G..1T")
    assert "5 km" in text and "9000 km" in text and "10 Gb/s" in text
    assert len(as_json("--over km=5..9000 --over rate=10G..1T")) == 49


def test_out_of_reach_is_said_and_null_in_json() -> None:
    far = "--strategy ddp --ranks-per-site 8 --step-time 50ms --delay 50ms --target 0.9"
    assert "out of reach at any rate: distance limits" in run(far)
    found = as_json(f"{far} --lab-step-time 50ms")
    assert found["rate_bps"] is None and found["inputs"]["rate_bps"] is None  # JSON has no infinity
    assert "any rate of payload" in run(f"{far} --lab-step-time 50ms")


def test_what_never_waits_reaches_its_target_at_any_rate() -> None:
    assert "reached at any rate" in run("--strategy decoupled --target 0.9")


def test_a_billion_sites_take_no_time_each() -> None:
    found = as_json("--strategy decoupled --every 100 --sites 1000000000 --delay 0s")
    assert found["merge_s"] == pytest.approx(80 + 1.6)


def test_rows_of_a_table_name_where_they_are() -> None:
    rows = as_json("--strategy diloco --over every=1..3 --over km=5..50")
    assert [row["over"]["every"] for row in rows[::7]] == [1, 2, 3]
    assert rows[0]["over"]["delay_s"] == pytest.approx(25e-6)


def test_energy_is_bits_times_joules_and_waiting_times_watts() -> None:
    """Two sites send 160 Gbit each in 100 steps; 16 accelerators wait 16.005 s of them."""
    words = "--strategy diloco --every 100 --rate 10G --delay 5ms --ranks-per-site 8"
    found = as_json(f"{words} --joules-per-bit 50e-12 --idle-watts 100")["energy_j"]
    assert found["exchange"] == pytest.approx(2 * 160e9 * 50e-12 / 100)
    assert found["waiting"] == pytest.approx(16 * 16.005 * 100 / 100)
    assert "J to send" in run(f"{words} --idle-watts 100")
    assert as_json(words)["energy_j"] is None


def test_a_single_site_has_no_exchange() -> None:
    found = as_json("--sites 1 --ranks-per-site 8")
    assert (found["utilization"], found["groups"]["wire_kappa"], found["pattern"]["delays"]) == (1.0, 0.0, 0)


def test_a_heat_map_is_written(tmp_path: Path) -> None:
    for name in ("map.svg", "map.html"):
        run(f"--over km=5..9000 --over rate=10G..1T --picture {tmp_path / name}")
        drawn = (tmp_path / name).read_text()
        tree = ElementTree.fromstring(drawn[drawn.index("<svg") : drawn.index("</svg>") + 6])
        texts = [str(element.text) for element in tree.iter("{http://www.w3.org/2000/svg}text")]
        assert len([text for text in texts if text.endswith(" %")]) == 49
        assert "9000 km" in texts


def test_windows_and_loss_of_tcp_limit_the_rate() -> None:
    far = "--strategy diloco --every 100 --rate 100G --delay 5ms"
    assert as_json(f"{far} --window 6MB")["inputs"]["rate_bps"] == pytest.approx(4.8e9)
    assert as_json(f"{far} --window 6MB --connections 4")["inputs"]["rate_bps"] == pytest.approx(19.2e9)
    assert as_json(f"{far} --loss 0.01%")["inputs"]["rate_bps"] == pytest.approx(141.9e6, rel=1e-3)


def test_failures_add_goodput_and_the_best_interval() -> None:
    found = as_json("--strategy diloco --every 100 --mtbf 3h --checkpoint 30s --restart 5min")
    assert found["goodput"] < found["utilization"]
    assert found["best_checkpoint_interval_s"] == pytest.approx((2 * 30 * 3 * 3600) ** 0.5, rel=0.05)
    assert as_json("--mtbf 3h --checkpoint-every 10s")["goodput"] < as_json("--mtbf 3h")["goodput"]


def test_a_merge_waits_for_its_quorum_and_grace() -> None:
    """H T is 80 s at the fast sites and 120 s at the slow one; an exchange takes 5 ms and 1.6 s."""
    words = "--strategy decoupled --every 100 --sites 3 --slow 1,1,1.5 --rate 100G --delay 5ms"
    assert as_json(words)["merge_s"] == pytest.approx(120 + 1.605)
    assert as_json(f"{words} --quorum 2")["merge_s"] == pytest.approx(80 + 1.605)
    assert as_json(f"{words} --quorum 2 --grace 10s")["merge_s"] == pytest.approx(90 + 1.605)
    assert as_json(f"{words} --quorum 2 --grace 60s")["merge_s"] == pytest.approx(120 + 1.605)
    assert as_json(words)["utilization"] == 1.0


def test_tiers_add_up() -> None:
    found = as_json("--strategy tiers --tier 1:1T:10us --tier 100:10G:5ms")
    assert found["step_s"] == pytest.approx(0.8 + (0.16 + 10e-6) + (16 + 5e-3) / 100)


def test_the_similar_lab_has_the_same_groups_and_says_if_the_cores_cannot_carry_it() -> None:
    found = as_json("--strategy ddp --rate 100G --delay 5ms --lab-step-time 50ms")
    lab = found["similar_lab"]
    assert (lab["delay_s"], lab["rate_bps"]) == (pytest.approx(5e-3 / 16), pytest.approx(100e9 * 16 / 1000))
    assert "CPU-bound here" in run("--strategy ddp --ranks-per-site 500 --lab-step-time 50ms")


def test_failures_come_from_accelerators_sites_and_fibers() -> None:
    words = "metro-single --strategy ddp --mtbf-rank 5.78y --cuts 2.13 --repair 12h"
    found = as_json(words)["failures"]
    assert found["failures_per_year"]["accelerators"] == pytest.approx(4 / 5.78)
    assert found["failures_per_year"]["fibers"] == pytest.approx(2.13 * 40 / 1000)
    assert 1 - found["route_availability"] == pytest.approx(1.166e-4, rel=1e-3)  # claim 61: 40 km, 12 h
    two = as_json(words.replace("metro-single", "metro-40km"))["failures"]
    assert (two["routes"], two["failures_per_year"]["fibers"]) == (2, 0)  # each route bypasses the other
    assert 1 - two["route_availability"] < 1e-7
    text = run(words)
    assert "goodput, elastic" in text and "goodput, decoupled" in text and "1 route east - west" in text
    assert as_json("metro-40km")["failures"] is None


def test_slow_start_after_idle_is_told_and_can_be_added() -> None:
    words = "--strategy diloco --every 100 --rate 10G --delay 5ms"
    cold_s = as_json(words)["exchange"]["cold_start_s"]
    assert cold_s == pytest.approx(10e-3 * 10)  # 8,633 packets of 1448 bytes fill the pipe, from 10: ten doublings
    exposed = [as_json(f"{words} {option}")["exposed"]["propagation_s"] for option in ("", "--cold-start")]
    assert exposed[1] - exposed[0] == pytest.approx(cold_s / 100)
    assert as_json(words)["exchange"]["alone_s"] == pytest.approx(16 + 5e-3)


def test_both_levels_are_printed_and_what_has_no_events_says_so() -> None:
    words = "--strategy async-diloco --every 10 --slow 1,1.5"
    found = as_json(words)
    assert found["events"]["utilization"] == pytest.approx(found["closed_form"]["utilization"], rel=1e-3)
    assert found["utilization"] <= 1 / 1.5
    assert "by events 6" in invoke(words).output
    long = "--strategy streaming-diloco --every 1000000 --fragments 16"
    assert as_json(long)["formula"] == "events"
    many = "--strategy async-diloco --staleness 1000000"
    assert as_json(many)["events"] is None
    assert "at most 25000" in as_json(many)["no_events"]
    assert "not by events: 3000003 rounds" in invoke(many).output


def test_every_prediction_has_its_similar_lab_and_says_what_is_not_similar() -> None:
    text = run("metro-40km --strategy diloco --every 100")
    assert "similar lab: 50 ms a step, 12.5 us one way (2.5 km), 12.1 Gb/s of payload at scale 1000" in text
    assert "stands for 16 times its distance: 640 km, 47.1 Gb/s of payload" in text
    assert "TCP's loss and windows are not similar" in text
    found = as_json("metro-40km --strategy diloco --every 100")["similar_lab"]
    assert (found["phi"], found["stands_for"]["length_m"]) == (pytest.approx(16), pytest.approx(640e3))
    assert found["cpu_bound"] is True or found["cpu_share"] <= 1
    table = run("--strategy ddp --over km=5..9000 --over rate=10G..1T")
    assert "lambda 0.000125 to 0.225" in table and "phi 16" in table and "are not similar" in table


def test_quality_is_that_of_publications_and_never_ours() -> None:
    found = as_json("--strategy diloco --every 100")["published_quality"]
    assert all(quality["source"] for quality in found)
    assert any(quality["kind"] == "fitted law" for quality in found)
    text = run("--strategy diloco --every 100")
    assert text.count("published, not predicted: ") == len(found)
    assert as_json("--strategy moe --expert-layers 1 --token-bits 1")["published_quality"] == []


def test_energy_by_class_of_path() -> None:
    words = "metro-40km --strategy hierarchical --joules-per-bit metro=50e-12 --joules-per-bit fabric=5e-12"
    by_class = as_json(words)["energy_j"]["by_class"]
    assert by_class == pytest.approx({"metro": 2 * 160e9 * 50e-12, "fabric": 2 * 2 * 160e9 * 5e-12})
    assert "metro 16 J" in run(words)


def test_prediction_progress_counts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_progress, "SILENT_S", 0.0)
    with prediction_progress.Counted("predictions", 3) as counted:
        assert [counted(name) for name in "abc"] == ["a", "b", "c"]
    assert "1 of 3 predictions" in capsys.readouterr().err


MOST_LAYERS = "must be at most the number of layers (48), got 49"
REFUSED = {
    "--strategy diloco --every 0": "--every must be 1 or more, got 0",
    "--layers 0": "--layers must be 1 or more, got 0",
    "--strategy streaming-diloco --every 4 --overlap 4": "--overlap must be less than --every (4), got 4",
    "--strategy streaming-diloco --every 99 --fragments 49": f"--fragments {MOST_LAYERS}",
    "--strategy ddp --every 2": "strategy ddp has no --every",
    "--strategy dilocco": "unknown strategy 'dilocco'",
    "--target 1": "--target must be greater than 0 and less than 1, got 1",
    "--over miles=1..2": "--over: expected K=A..B",
    "--over km=9..5": "--over km: expected a range from a lower to a higher value",
    "--rate fast": "--rate: ",
    "--tier 10:fast": "--tier: expected H:RATE:DELAY, got '10:fast'",
    "--strategy tiers --tier 10:1G:1ms --tier 5:1G:1ms": "--tier must be given from near to far",
    "--strategy tiers": "strategy tiers needs --tier",
    "--strategy pipeline": "strategy pipeline needs --activation-bits",
    "--strategy moe": "strategy moe needs --expert-layers",
    "--mtbf 3h --checkpoint 0s": "--checkpoint and --checkpoint-every must be greater than 0",
    "--slow 1,2,3": "--slow must name each of 2 sites, got 3 values",
    "--strategy decoupled --quorum 3": "--quorum must be at most the number of sites (2), got 3",
    "--picture map.svg": "--picture needs two --over",
    "--over km=5..9 --over rate=1G..9G --picture map.png": "ends in .svg or .html",
    "--checkpoint-every 10s": "--checkpoint-every needs --mtbf",
    "--mtbf 0s": "--mtbf, --checkpoint and --checkpoint-every must be greater than 0",
    "--loss 1": "--loss 0 or more and less than 1",
    "--strategy pipeline --activation-bits nan": "--activation-bits must be finite, got nan",
    "--wire-factor inf": "--wire-factor must be finite, got inf",
    "--slow 1,inf": "--slow must be greater than 0 and finite for each site",
    "--slow ''": "--slow: expected a number for each site, got ''",
    "--layers 10000000": "--layers must be at most 10000",
    f"--ranks-per-site {10**400 - 1}": "--ranks-per-site must be at most 1000000000000",
    "--strategy tiers --tier 9:1G:1ms --target 0.9": "strategy tiers has the rate and delay of",
    "--strategy ddp --over every=1..9": "strategy ddp has no --every",
    "--over km=5..9 --over delay=1ms..2ms": "--over km and --over delay vary the same input",
    "--over rate=1G..9G --target 0.9": "--target looks for the rate",
    "--strategy diloco --over every=1..inf": "--over every: expected a range",
    "metro-40km --lab-step-time 1s --lab-scale inf": "--lab-scale must be greater than 0 and finite",
    "--idle-watts nan": "--joules-per-bit and --idle-watts must be 0 or more, and finite",
    "--cuts -1": "--cuts must be 0 or more",
    "--mtbf-rank 0s": "--mtbf-rank, --mtbf-site, --mtbf, --checkpoint and --checkpoint-every must be",
    "--mtbf '3 fortnights'": "--mtbf: expected a number and one of ms, s, min, h, d, y, got '3 fortnights'",
    "--joules-per-bit metro=cheap": "--joules-per-bit: expected J or CLASS=J, got 'metro=cheap'",
    "--joules-per-bit ocean=1": "--joules-per-bit: unknown class of path 'ocean'",
    "--joules-per-bit regional=1": "--joules-per-bit: expected a value for metro fiber",
    "--strategy tiers --tier 9:1G:1ms --cold-start": "strategy tiers has no --cold-start",
    "--strategy ddp --outer-step 1s": "strategy ddp has no --outer-step",
    "--strategy moe --expert-layers 49 --token-bits 1": f"--expert-layers {MOST_LAYERS}",
    "metro-40km --target nan": "--target must be greater than 0",
}


@pytest.mark.parametrize(("line", "expected"), REFUSED.items())
def test_predict_refuses_impossible_input_by_name(cli: Cli, line: str, expected: str) -> None:
    Call(f"predict {line}", 2, err=expected).check(cli)


def test_predict_in_python_is_the_same() -> None:
    found = testbed.predict("diloco", step_s=0.8, parameters=10e9, layers=48, rate_bps=5e9, delay_s=5e-3, every=100)
    assert found.utilization == pytest.approx(80 / (80 + 5e-3 + 160e9 / 5e9))


@pytest.mark.parametrize("words", ["--bits 1e308", "--payload-factor 1e300", "--wire-factor 1e300"])
def test_predict_refuses_numbers_whose_products_overflow(words: str) -> None:
    result = invoke(words)
    assert "must be at most 1e+30" in str(result.exception) + result.output
