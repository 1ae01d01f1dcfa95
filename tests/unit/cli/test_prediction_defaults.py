"""``testbed.predict`` and ``testbed predict`` have the same defaults."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from testbed.core.prediction.inputs import DEFAULTS
from typer.testing import CliRunner

import testbed
from testbed.cli import app, predict_verb
from testbed.core.units import parse_count, parse_delay_s, parse_rate_bps, parse_step_s


@pytest.mark.parametrize(
    ("strategy", "words", "inputs"),
    [
        ("ddp", "", {}),
        ("diloco", "--every 100", {"every": 100}),
        ("streaming-diloco", "--every 30 --fragments 3 --rate 5G", {"every": 30, "fragments": 3, "rate_bps": 5e9}),
        ("diloco", "metro-40km --every 10", {"topology": "metro-40km", "every": 10}),
    ],
    ids=["nothing given", "diloco every 100 steps", "a rate instead of the default", "a topology's sites and rate"],
)
def test_python_predicts_what_the_command_does(strategy: str, words: str, inputs: dict[str, Any]) -> None:
    result = CliRunner().invoke(app.app, f"predict --strategy {strategy} {words} --json")
    assert result.exit_code == 0, result.output
    written = json.loads(result.stdout)
    predicted = testbed.predict(strategy, **inputs).to_dict()
    assert predicted["utilization"] == written["utilization"]
    assert json.loads(json.dumps(predicted["inputs"])) == written["inputs"]


def test_diloco_with_defaults_is_the_closed_form() -> None:
    # 100 steps of 800 ms; then 10e9 values of 16 bits at 100 Gb/s, and one delay of 200 us.
    assert testbed.predict("diloco", every=100).utilization == pytest.approx(80 / (80 + 1.6 + 200e-6))


def test_help_shows_the_defaults() -> None:
    shown = {
        name: parameter.annotation.__metadata__[0].show_default
        for name, parameter in inspect.signature(predict_verb.predict, eval_str=True).parameters.items()
        if name in ("parameters", "layers", "step_time", "rate", "delay")
    }
    assert {
        "parameters": parse_count(shown["parameters"]),
        "layers": int(shown["layers"]),
        "step_s": parse_step_s(shown["step_time"]),
        "rate_bps": parse_rate_bps(shown["rate"]),
        "delay_s": parse_delay_s(shown["delay"]),
    } == DEFAULTS
