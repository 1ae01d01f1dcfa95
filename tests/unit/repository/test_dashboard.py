"""The Grafana dashboard, and that dashboard, rules and docs/observability.md speak of the same series.

The page is the oracle of names: it is written by hand from the contract and shares nothing with what makes the others.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import prometheus_client
import pytest
import yaml
from builders import ROOT
from builders.programs import python, run
from oracles import exported_series
from testbed_agents.recording.metrics import RankMetrics

from testbed.host.emulators.emulator import DROP_CAUSES

DASHBOARD = ROOT / "grafana" / "testbed.json"
LINT = ROOT / "grafana" / ".lint"
RULES = ROOT / "testbed" / "core" / "prometheus" / "assets" / "rules.yml"
PAGE = ROOT / "docs" / "observability.md"


BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text())
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
RULE_LIST = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield a name, and the PromQL expression with values in place of Grafana's variables."""
    queries = [*QUERIES, *((annotation["name"], annotation) for annotation in BOARD["annotations"]["list"])]
    for name, query in queries:
        expression = query["expr"]
        for variable, value in (("$__rate_interval", "16s"), ("$lab", "metro"), ("$site", ".*")):
            expression = expression.replace(variable, value)
        assert "$" not in expression, expression
        yield name, expression


def series_in(expression: str) -> set[str]:
    """Names of series in an expression, outside of strings; histograms without what they add."""
    words = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.sub(r'"[^"]*"', "", expression))
    names = {word for word in words if "testbed_" in word}
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def documented() -> set[str]:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


@pytest.mark.skipif(
    importlib.util.find_spec("grafana_foundation_sdk") is None,
    reason="grafana-foundation-sdk is not installed (pip install -e '.[dashboard]')",
)
def test_the_file_is_what_the_script_makes_now() -> None:
    made = python(ROOT / "tools" / "dashboard.py", check=True).stdout
    assert made == DASHBOARD.read_text(), "run: tools/dashboard.py > grafana/testbed.json"


def test_no_window_is_fixed_and_each_is_long_enough_to_be_steady() -> None:
    """A fixed window shows gaps where a panel's steps are longer. Grafana's is at least four times the Min step."""
    windowed = [query for _, query in QUERIES if "[" in query["expr"]]
    assert len(windowed) >= 9
    for query in windowed:
        assert set(re.findall(r"\[([^]]*)\]", query["expr"])) == {"$__rate_interval"}, query["expr"]
        assert query["interval"] == "4s", query["expr"]  # 16 s, as the recording rules' 15 s
    assert all(query.get("interval", "1s") == "1s" for _, query in QUERIES if query not in windowed)


def test_the_data_source_is_a_variable_everywhere() -> None:
    uids = re.findall(r'"uid": "([^"]*)"', DASHBOARD.read_text())
    assert set(uids) == {"${datasource}", BOARD["uid"]} and uids.count(BOARD["uid"]) == 1
    first = BOARD["templating"]["list"][0]
    assert (first["type"], first["name"], first["query"]) == ("datasource", "datasource", "prometheus")
    for title, query in QUERIES:
        assert query["datasource"]["uid"] == "${datasource}", title


def test_each_exclusion_of_the_linter_has_its_reason_and_names_a_panel_that_exists() -> None:
    written = yaml.safe_load(LINT.read_text())
    assert set(written) == {"exclusions"}, "a warning is neither content nor a reason"
    titles = {panel["title"] for panel in PANELS}
    for rule, exclusion in written["exclusions"].items():
        assert len(exclusion["reason"]) > 40, rule
        assert {entry["panel"] for entry in exclusion.get("entries", ())} <= titles, rule


@pytest.mark.skipif(
    shutil.which("dashboard-linter") is None,
    reason="dashboard-linter is in no package registry that set-up uses "
    "(go install github.com/grafana/dashboard-linter@latest)",
)
def test_grafanas_linter_is_content(tmp_path: Path) -> None:
    def lint(config: Path) -> CompletedProcess[str]:
        return run("dashboard-linter", "lint", "--strict", "--config", config, DASHBOARD)

    done = lint(LINT)
    assert done.returncode == 0, done.stdout + done.stderr
    excluded = yaml.safe_load(LINT.read_text())["exclusions"]
    for rule in excluded:  # each is needed
        config = tmp_path / f"without-{rule}"
        kept = {name: exclusion for name, exclusion in excluded.items() if name != rule}
        config.write_text(yaml.safe_dump({"exclusions": kept}))
        assert lint(config).returncode == 1, rule


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (apt-get install prometheus)")
def test_prometheus_can_read_each_expression(tmp_path: Path) -> None:
    rules = [{"record": f"dashboard:{number}", "expr": text} for number, (_, text) in enumerate(expressions())]
    assert len(rules) > 30
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = run("promtool", "check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_each_series_of_the_dashboard_and_of_the_rules_isdocumented() -> None:
    for name, expression in (*expressions(), *((str(rule), rule["expr"]) for rule in RULE_LIST)):
        assert series_in(expression) or re.search(r"\b(ALERTS|up)\b", expression), name
        assert series_in(expression) <= documented(), name


def test_the_page_names_each_recorded_series_and_each_alert_and_no_other() -> None:
    recorded = {name for name in documented() if ":" in name}
    alerts = {name for name in documented() if name[0].isupper()}
    assert recorded == {rule["record"] for rule in RULE_LIST if "record" in rule}
    assert alerts == {rule["alert"] for rule in RULE_LIST if "alert" in rule}


def test_the_page_names_each_series_of_a_rank_and_no_other() -> None:
    metrics = RankMetrics(site="east", node="east-0", rank=0, torch_version="2")
    text = prometheus_client.generate_latest(metrics.registry).decode()
    of_a_rank = set(re.findall(r"^# TYPE (\S+)", text, flags=re.MULTILINE))
    section = PAGE.read_text().partition("Of each rank")[2].partition("Of the keeper")[0]
    assert set(re.findall(r"`(testbed_[a-z_]+)`", section)) == of_a_rank


def test_the_page_names_each_series_of_the_keeper_with_its_labels_and_no_other() -> None:
    section = PAGE.read_text().partition("Of the keeper")[2].partition("## ")[0]
    listed = {}
    for _, names, labels, _, _ in (line.split("|") for line in section.splitlines() if line.startswith("| `")):
        for name in re.findall(r"`([^`]+)`", names):
            listed[name] = set(re.findall(r"`([^`]+)`", labels)) - {"le"}
    assert listed == {series.name: set(series.labels) for series in exported_series.ALL}


def test_the_page_names_each_cause_of_a_drop() -> None:
    _, _, row = PAGE.read_text().partition("\n| `testbed_fiber_dropped_packets_total`")
    assert set(re.findall(r"`([a-z]+)`", row.split("|")[2])) == set(DROP_CAUSES)


def test_each_panel_says_what_it_shows_and_in_which_unit() -> None:
    assert len({panel["title"] for panel in PANELS}) > 25
    for panel in PANELS:
        assert len(panel["description"]) > 30, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_each_query_asks_for_the_lab_that_is_chosen() -> None:
    for title, query in QUERIES:
        selectors = re.findall(r"\{([^}]*)\}", query["expr"])
        assert selectors and all('lab="$lab"' in selector for selector in selectors), title


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        left, top, width, height = (panel["gridPos"][key] for key in "xywh")
        cells = {(left + x, top + y) for x in range(width) for y in range(height)}
        assert left + width <= 24 and not cells & taken, panel["title"]
        taken |= cells
