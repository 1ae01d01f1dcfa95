"""The Grafana dashboard, and that dashboard, rules and docs/observability.md speak of the same series.

The page is the oracle of names: it is written by hand from the contract and shares nothing with what makes the others.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml
from oracles import exported_series
from testbed_agents.metrics import RankMetrics

from testbed.host.emulators.emulator import DROP_CAUSES

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "grafana" / "testbed.json"
LINT = ROOT / "grafana" / ".lint"
RULES = ROOT / "testbed" / "core" / "prometheus" / "assets" / "rules.yml"
PAGE = ROOT / "docs" / "observability.md"


def _dashboard() -> dict[str, Any]:
    made = json.loads(DASHBOARD.read_text())
    assert isinstance(made, dict)
    return made


def _panels() -> list[dict[str, Any]]:
    return [panel for panel in _dashboard()["panels"] if panel["type"] != "row"]


def _expressions() -> Iterator[tuple[str, str]]:
    """Where, and the PromQL expression with values in place of Grafana's variables."""
    for panel in _panels():
        for target in panel["targets"]:
            yield panel["title"], _filled_in(target["expr"])
    for annotation in _dashboard()["annotations"]["list"]:
        yield annotation["name"], _filled_in(annotation["expr"])


def _filled_in(expression: str) -> str:
    for variable, value in (("$__rate_interval", "16s"), ("$lab", "metro"), ("$site", ".*")):
        expression = expression.replace(variable, value)
    assert "$" not in expression, expression
    return expression


def _rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def _names(expression: str) -> set[str]:
    """Names of series in an expression, outside of strings; histograms without what they add."""
    words = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.sub(r'"[^"]*"', "", expression))
    names = {word for word in words if "testbed_" in word}
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def _documented() -> set[str]:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


@pytest.mark.skipif(
    importlib.util.find_spec("grafana_foundation_sdk") is None,
    reason="grafana-foundation-sdk is not installed (pip install -e '.[dashboard]')",
)
def test_the_file_is_what_the_script_makes_now() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "dashboard.py"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == DASHBOARD.read_text(), "run: tools/dashboard.py > grafana/testbed.json"


def test_no_window_is_fixed_and_each_is_long_enough_to_be_steady() -> None:
    """A fixed window shows gaps where a panel's steps are longer. Grafana's is at least four times the Min step."""
    queries = [target for panel in _panels() for target in panel["targets"]]
    windowed = [query for query in queries if "[" in query["expr"]]
    assert len(windowed) >= 9
    for query in windowed:
        assert set(re.findall(r"\[([^]]*)\]", query["expr"])) == {"$__rate_interval"}, query["expr"]
        assert query["interval"] == "4s", query["expr"]  # 16 s, as the recording rules' 15 s
    assert all(query.get("interval", "1s") == "1s" for query in queries if query not in windowed)


def test_the_data_source_is_a_variable_everywhere() -> None:
    found = re.findall(r'"uid": "([^"]*)"', DASHBOARD.read_text())
    assert set(found) == {"${datasource}", _dashboard()["uid"]} and found.count(_dashboard()["uid"]) == 1
    first = _dashboard()["templating"]["list"][0]
    assert (first["type"], first["name"], first["query"]) == ("datasource", "datasource", "prometheus")
    for panel in _panels():
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"]), panel["title"]


def test_each_exclusion_of_the_linter_has_its_reason_and_names_a_panel_that_exists() -> None:
    written = yaml.safe_load(LINT.read_text())
    assert set(written) == {"exclusions"}, "a warning is neither content nor a reason"
    titles = {panel["title"] for panel in _panels()}
    for rule, exclusion in written["exclusions"].items():
        assert len(exclusion["reason"]) > 40, rule
        assert {entry["panel"] for entry in exclusion.get("entries", ())} <= titles, rule


@pytest.mark.skipif(
    shutil.which("dashboard-linter") is None,
    reason="dashboard-linter is in no package registry that set-up uses "
    "(go install github.com/grafana/dashboard-linter@latest)",
)
def test_grafanas_linter_is_content(tmp_path: Path) -> None:
    def lint(config: Path) -> subprocess.CompletedProcess[str]:
        words = ["dashboard-linter", "lint", "--strict", "--config", str(config), str(DASHBOARD)]
        return subprocess.run(words, capture_output=True, text=True, timeout=60)

    done = lint(LINT)
    assert done.returncode == 0, done.stdout + done.stderr
    excluded = yaml.safe_load(LINT.read_text())["exclusions"]
    for rule in excluded:  # each is needed
        rest = tmp_path / f"without-{rule}"
        rest.write_text(yaml.safe_dump({"exclusions": {name: it for name, it in excluded.items() if name != rule}}))
        assert lint(rest).returncode == 1, rule


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (apt-get install prometheus)")
def test_prometheus_can_read_each_expression(tmp_path: Path) -> None:
    rules = [{"record": f"dashboard:{number}", "expr": it} for number, (_, it) in enumerate(_expressions())]
    assert len(rules) > 30
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_each_series_of_the_dashboard_and_of_the_rules_is_documented() -> None:
    known = _documented()
    for where, expression in (*_expressions(), *((str(rule), rule["expr"]) for rule in _rules())):
        assert _names(expression) or re.search(r"\b(ALERTS|up)\b", expression), where
        assert _names(expression) <= known, where


def test_the_page_names_each_recorded_series_and_each_alert_and_no_other() -> None:
    documented = _documented()
    assert {name for name in documented if ":" in name} == {rule["record"] for rule in _rules() if "record" in rule}
    alerts = {name for name in documented if name[0].isupper()}
    assert alerts == {rule["alert"] for rule in _rules() if "alert" in rule}


def test_the_page_names_each_series_of_a_rank_and_no_other() -> None:
    metrics = RankMetrics(site="east", node="east-0", rank=0, torch_version="2")
    text = prometheus_client.generate_latest(metrics.registry).decode()
    of_a_rank = set(re.findall(r"^# TYPE (\S+)", text, flags=re.MULTILINE))
    section = PAGE.read_text().partition("Of each rank")[2].partition("Of the keeper")[0]
    assert set(re.findall(r"`(testbed_[a-z_]+)`", section)) == of_a_rank


def test_the_page_names_each_series_of_the_keeper_with_its_labels_and_no_other() -> None:
    section = PAGE.read_text().partition("Of the keeper")[2].partition("## ")[0]
    found = {}
    for _, names, labels, _, _ in (line.split("|") for line in section.splitlines() if line.startswith("| `")):
        for name in re.findall(r"`([^`]+)`", names):
            found[name] = set(re.findall(r"`([^`]+)`", labels)) - {"le"}
    assert found == {it.name: set(it.labels) for it in exported_series.ALL}


def test_the_page_names_each_cause_of_a_drop() -> None:
    row = next(
        line for line in PAGE.read_text().splitlines() if line.startswith("| `testbed_fiber_dropped_packets_total`")
    )
    assert set(re.findall(r"`([a-z]+)`", row.split("|")[3])) == set(DROP_CAUSES)


def test_each_panel_says_what_it_shows_and_in_which_unit() -> None:
    panels = _panels()
    assert len({panel["title"] for panel in panels}) > 25
    for panel in panels:
        assert len(panel["description"]) > 30, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
    assert len({panel["id"] for panel in _dashboard()["panels"]}) == len(_dashboard()["panels"])


def test_each_query_asks_for_the_lab_that_is_chosen() -> None:
    for panel in _panels():
        for target in panel["targets"]:
            selectors = re.findall(r"\{([^}]*)\}", target["expr"])
            assert selectors and all('lab="$lab"' in selector for selector in selectors), panel["title"]


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in _dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
