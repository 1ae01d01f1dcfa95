"""Dashboard and rules on a real run: each expression returns data, and alerts fire and resolve with their cause.

Prometheus itself is queried over HTTP from inside the management namespace.
"""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import ROOT
from builders.conditions import LABS, NEEDS_PROMETHEUS
from builders.json_files import read_json
from builders.labs import Lab, bring_up
from oracles import oracle

pytestmark = [*LABS, NEEDS_PROMETHEUS]

DASHBOARD = ROOT / "grafana" / "testbed.json"
RULES = ROOT / "testbed" / "core" / "prometheus" / "assets" / "rules.yml"
SERVER = "http://172.31.0.1:9090/api/v1"

STEPS = 100_000
"""More than the test lasts; the job is stopped."""


@pytest.fixture(scope="module")
def training(state_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """metro-40km, observed, and a job that trains in it for as long as the tests of this module last."""
    name = oracle.unused_name()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESTBED_RUNS", str(tmp_path_factory.mktemp("runs")))
        with bring_up(name, agents=True, observe=True) as lab:
            job = lab.train(steps=STEPS)
            job.wait_for(20)
            yield lab
            job.stop()
    assert oracle.left_behind(name, state_folder) == []


def answers(lab: str, path: str, **parameters: str) -> Any:
    """``data`` of an answer of Prometheus' HTTP API."""
    url = f"{SERVER}/{path}?{urllib.parse.urlencode(parameters)}"

    def get() -> Any:
        with urllib.request.urlopen(url, timeout=10) as said:
            return json.load(said)

    answer = oracle.inside(oracle.netns(lab, "mgmt"), get)
    assert answer["status"] == "success", (url, answer)
    return answer["data"]


def samples(lab: str, expression: str) -> list[dict[str, Any]]:
    found = answers(lab, "query", query=expression)["result"]
    assert isinstance(found, list)
    return found


def firing(lab: str) -> set[tuple[str, str]]:
    """Name and link of each alert that fires."""
    alerts = [it for it in answers(lab, "alerts")["alerts"] if it["state"] == "firing"]
    return {(it["labels"]["alertname"], it["labels"].get("link", "")) for it in alerts}


def expressions(lab: str) -> dict[str, str]:
    """Every expression of the dashboard, and every recorded series, by where it is from."""
    dashboard = read_json(DASHBOARD)
    found = {
        f"{panel['title']}, query {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    found |= {annotation["name"]: annotation["expr"] for annotation in dashboard["annotations"]["list"]}
    found = {
        where: it.replace("$__rate_interval", "16s").replace("$lab", lab).replace("$site", ".*")
        for where, it in found.items()
    }
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        found |= {rule["record"]: rule["record"] for rule in group["rules"] if "record" in rule}
    return found


@pytest.mark.thorough
def test_every_expression_of_dashboard_and_rules_answers_with_data(training: Lab) -> None:
    """With a link cut and another that loses packets, so that faults, drops and alerts have something to say."""
    lab = training.name
    unanswered = expressions(lab)
    assert len(unanswered) > 50

    def all_answered() -> bool:
        for where in [where for where, it in unanswered.items() if samples(lab, it)]:
            del unanswered[where]
        return not unanswered

    with training.cut("south"), training.inject("impair", "north", loss="1%"):
        try:
            oracle.until(all_answered, 60.0, "every expression answers")
        except AssertionError:
            pytest.fail(f"no data: {unanswered}")


def test_a_dark_link_is_an_alert_until_it_is_lit(training: Lab) -> None:
    lab = training.name
    with training.cut("south"):
        oracle.until(lambda: ("LinkDown", "south") in firing(lab), 20.0, "LinkDown fires")
        assert ("LinkDown", "north") not in firing(lab)
    oracle.until(lambda: ("LinkDown", "south") not in firing(lab), 20.0, "LinkDown is over")


@pytest.mark.thorough
def test_a_rank_that_does_not_answer_is_down_and_training_stands_still(training: Lab) -> None:
    lab = training.name
    with training.inject("rank-pause", "3"):
        oracle.until(lambda: {("RankDown", ""), ("TrainingStalled", "")} <= firing(lab), 40.0, "both alerts fire")
    oracle.until(lambda: not {("RankDown", ""), ("TrainingStalled", "")} & firing(lab), 20.0, "both are over")


def test_rules_are_healthy_and_their_words_are_whole(training: Lab) -> None:
    """A mistake in a template is found only when an alert is active: Prometheus writes it in place of the text."""
    rules = [rule for group in answers(training.name, "rules")["groups"] for rule in group["rules"]]
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    with training.cut("south"):
        oracle.until(lambda: ("LinkDown", "south") in firing(training.name), 20.0, "LinkDown fires")
        for alert in answers(training.name, "alerts")["alerts"]:
            for words in alert["annotations"].values():
                assert "<error" not in words and "<no value>" not in words
