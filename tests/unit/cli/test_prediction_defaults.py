"""``testbed.predict`` and ``testbed predict`` have the same defaults, which the help shows."""

from __future__ import annotations

import json
from typing import Any

import typer
from builders.tables import table
from typer.testing import CliRunner

import testbed
from testbed.cli import app
from testbed.core.prediction import workload_job
from testbed.core.units import parse_delay_s, parse_rate_bps
from testbed.core.workload.declared_compute import MODEL_LAYERS


@table(
    "words, strategy, inputs",
    {
        "nothing given": ("", None, {}),
        "diloco every 100 steps": ("--strategy diloco:every=100", "diloco", {"every": 100}),
        "an option with a point in its name": (
            "--strategy diloco:outer.rate=0.5", "diloco:outer.rate=0.5", {},
        ),
        "a rate instead of the default": (
            "--strategy streaming-diloco:every=30,fragments=3 --rate 5G",
            "streaming-diloco",
            {"every": 30, "fragments": 3, "rate_bps": 5e9},
        ),
        "a topology's sites and rate": (
            "metro-40km --strategy diloco:every=10", "diloco", {"topology": "metro-40km", "every": 10},
        ),
        "compute and model": (
            "--compute 2s --model 3B --layers 12 --sites 3", None,
            {"compute": "2s", "model": "3B", "layers": 12, "sites": 3},
        ),
    },
)  # fmt: skip
def test_python_predicts_what_the_command_does(words: str, strategy: str | None, inputs: dict[str, Any]) -> None:
    result = CliRunner().invoke(app.app, f"predict {words} --json")
    assert result.exit_code == 0, result.output
    predicted = testbed.predict(strategy, **inputs).to_dict()
    assert json.loads(json.dumps(predicted)) == json.loads(result.stdout) | {"similar_lab": None}


def test_help_shows_the_defaults() -> None:
    shown = {
        option.opts[0].removeprefix("--"): option.show_default
        for option in typer.main.get_command(app.app).commands["predict"].params  # type: ignore[attr-defined]
        if option.param_type_name == "option"
    }
    job = testbed.predict().job
    assert int(shown["layers"]) == job.twin.layout.layers == MODEL_LAYERS
    assert int(shown["sites"]) == job.sites and int(shown["ranks-per-site"]) == job.ranks_per_site
    assert parse_rate_bps(shown["rate"].rpartition(" ")[2]) == job.rate_bps == workload_job.RATE_BPS
    assert parse_delay_s(shown["delay"].rpartition(" ")[2]) == job.delay_s == workload_job.DELAY_S
    assert float(shown["lab-scale"]) == job.scale == workload_job.SCALE
