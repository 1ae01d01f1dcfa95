"""Rules of an observed lab, through the real promtool: https://prometheus.io/docs/prometheus/latest/command-line/promtool/"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.core
import typer.main
import yaml

from testbed.cli.app import app
from testbed.core.analysis.wire.fidelity import OWN_DROPS, P99_LIMIT_S

ROOT = Path(__file__).parents[4]
RULES = ROOT / "testbed" / "core" / "prometheus" / "assets" / "rules.yml"
TESTS = ROOT / "tests" / "prometheus" / "rules_test.yml"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (apt-get install prometheus)"
)


def _rules() -> list[dict[str, object]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def _promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)


@needs_promtool
def test_promtool_finds_no_mistake_in_the_rules() -> None:
    done = _promtool("check", "rules", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(_rules())} rules found" in done.stdout


@needs_promtool
def test_each_rule_answers_as_its_unit_tests_say() -> None:
    done = _promtool("test", "rules", TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_the_unit_tests_can_fail(tmp_path: Path) -> None:
    """One alert that never fires: the tests must say so, or they say nothing."""
    sound = "testbed_emulator_up == 0"
    assert RULES.read_text().count(sound) == 1
    (tmp_path / "rules.yml").write_text(RULES.read_text().replace(sound, "testbed_emulator_up == 2"))
    relative = "../../testbed/core/prometheus/assets/rules.yml"
    (tmp_path / "rules_test.yml").write_text(TESTS.read_text().replace(relative, "rules.yml"))
    done = _promtool("test", "rules", tmp_path / "rules_test.yml")
    assert done.returncode != 0
    assert "EmulatorDown" in done.stdout + done.stderr


def test_each_rule_has_a_unit_test() -> None:
    tested = TESTS.read_text()
    for rule in _rules():
        if "alert" in rule:
            assert f'alertname="{rule["alert"]}"' in tested
        else:
            assert re.search(rf"{re.escape(str(rule['record']))}\b", tested)


def test_recorded_names_say_level_metric_and_operations() -> None:
    """https://prometheus.io/docs/practices/rules/; the level ends where the metric's own name begins."""
    for rule in _rules():
        if "record" in rule:
            assert re.fullmatch(r"lab(_[a-z]+)*:testbed_[a-z_]+:[a-z0-9_]+", str(rule["record"]))


def test_each_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for rule in _rules():
        if "alert" not in rule:
            continue
        labels, annotations = rule["labels"], rule["annotations"]
        assert isinstance(labels, dict) and isinstance(annotations, dict)
        assert labels["severity"] in ("critical", "warning")
        assert "{{ $labels.lab }}" in annotations["summary"]
        description = annotations["description"]
        assert "`testbed " in description or "Stop other work on the machine" in description


def test_alerts_judge_the_emulator_as_the_report_does() -> None:
    alerts = {rule["alert"]: str(rule["expr"]) for rule in _rules() if "alert" in rule}
    assert f"> {P99_LIMIT_S:g}\n" in alerts["EmulatorLate"]
    causes = re.search(r'cause=~"([a-z|]+)"', alerts["EmulatorDrops"])
    assert causes and set(causes[1].split("|")) == set(OWN_DROPS)


def test_commands_that_alerts_tell_to_run_can_be_run() -> None:
    """Each is parsed by the command line itself, with a lab and a link in place of the templates."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    texts = " ".join(str(rule["annotations"]) for rule in _rules() if "alert" in rule)
    commands = set(re.findall(r"`testbed ([^`]+)`", re.sub(r"\{\{ *\$labels\.[a-z]+ *\}\}", "metro", texts)))
    assert len(commands) > 5
    for command in commands:
        verb, *arguments = command.split()
        assert verb in group.commands, command
        group.commands[verb].make_context(verb, arguments)
