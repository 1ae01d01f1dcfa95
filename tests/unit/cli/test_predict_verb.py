"""``testbed predict`` on the command line: figures, the least rate, tables, refusals by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import testbed
from testbed.cli import app, verb


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app.app, ["predict", *words])
    return result.exit_code, result.stdout


def as_json(*words: str) -> Any:
    status, text = run(*words, "--json")
    assert status == 0, text
    return json.loads(text)


def test_least_rate_is_a_cell_of_a_published_table() -> None:
    found = as_json(
        "--strategy", "streaming-diloco", "--parameters", "10B", "--layers", "48", "--step-time", "800ms", "--every",
        "100", "--fragments", "16", "--payload-factor", "0.84", "--overlap-last-backward", "--delay", "0s", "--target",
        "0.9",
    )  # fmt: skip
    grid = [round(10 ** (-1 + 4 * i / 49), 2) for i in range(50)]
    assert round(next(it for it in grid if it * 1e9 >= found["rate_bps"]), 1) == 9.1  # Table 4, 10B, streaming
    assert found["utilization"] == pytest.approx(0.9, abs=1e-3)


def test_a_topology_gives_sites_ranks_rate_and_delay() -> None:
    inputs = as_json("metro-40km", "--strategy", "ddp")["inputs"]
    assert (inputs["sites"], inputs["ranks_per_site"], inputs["delay_s"]) == (2, 2, pytest.approx(200e-6))
    assert inputs["rate_bps"] == pytest.approx(800e9 * 1448 / 1538)
    farther = as_json("metro-40km", "--strategy", "ddp", "--set", "links.north.km=80", "--set", "links.south.km=90")
    assert farther["inputs"]["delay_s"] == pytest.approx(400e-6)
    assert as_json("metro-40km", "--delay", "1ms")["inputs"]["delay_s"] == pytest.approx(1e-3)


def test_two_axes_make_a_table() -> None:
    status, text = run("--strategy", "ddp", "--over", "km=5..9000", "--over", "rate=10G..1T")
    assert status == 0
    assert "5 km" in text and "9000 km" in text and "10 Gb/s" in text
    assert len(as_json("--over", "km=5..9000", "--over", "rate=10G..1T")) == 49


def test_out_of_reach_is_said_and_null_in_json() -> None:
    far = ("--strategy", "ddp", "--ranks-per-site", "8", "--step-time", "50ms", "--delay", "50ms", "--target", "0.9")
    status, text = run(*far)
    assert status == 0
    assert "out of reach at any rate: distance limits" in text
    assert as_json(*far)["rate_bps"] is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--strategy", "diloco", "--every", "0"), "--every must be 1 or more, got 0"),
        (("--layers", "0"), "--layers must be 1 or more, got 0"),
        (
            ("--strategy", "streaming-diloco", "--every", "4", "--overlap", "4"),
            "--overlap must be less than --every (4), got 4",
        ),
        (
            ("--strategy", "streaming-diloco", "--every", "99", "--fragments", "49"),
            "--fragments must be at most the number of layers (48), got 49",
        ),
        (("--strategy", "ddp", "--every", "2"), "strategy ddp has no --every"),
        (("--strategy", "dilocco"), "unknown strategy 'dilocco'"),
        (("--target", "1"), "--target must be greater than 0 and less than 1, got 1"),
        (("--over", "miles=1..2"), "--over: expected K=A..B"),
        (("--over", "km=9..5"), "--over km: expected a range from a lower to a higher value"),
        (("--rate", "fast"), "--rate: "),
        (("metro-40km", "--target", "nan"), "--target must be greater than 0"),
    ],
)
def test_impossible_input_is_refused_by_name(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as ended:
        verb.app(["predict", *words], standalone_mode=True)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


def test_python_has_the_same() -> None:
    found = testbed.predict("diloco", step_s=0.8, parameters=10e9, layers=48, rate_bps=5e9, delay_s=5e-3, every=100)
    assert found.utilization == pytest.approx(80 / (80 + 5e-3 + 160e9 / 5e9))
