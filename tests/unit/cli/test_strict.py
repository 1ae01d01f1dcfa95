"""``--strict`` and ``--allow-uncertified`` of commands that run jobs or start labs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from builders.cli_fixtures import Answers, Call, Cli, FakeLab, answers, certificate_of, cli, fake_lab, never, noisy

from testbed.cli import app
from testbed.errors import NoisyHost
from testbed.lab import api, job_runner

__all__ = ["answers", "cli", "fake_lab"]  # fixtures

LINES = (
    "up metro-40km",
    "run metro-40km",
    "compare metro-40km --strategies ddp,local-sgd",
    "validate ring",
    "audit metro-40km --measure",
    "launch -- true",
    "train",
)
VERBS = {line.split()[0] for line in LINES}
NOISY = noisy(certificate_of(api.load("metro-40km")))


def with_option(option: str) -> set[str]:
    commands = typer.main.get_command(app.app).commands  # type: ignore[attr-defined]
    return {name for name, command in commands.items() if any(option in parameter.opts for parameter in command.params)}


def test_commands_with_allow_uncertified_and_certify_have_strict() -> None:
    assert with_option("--allow-uncertified") == VERBS
    assert with_option("--strict") == {*VERBS, "certify"}


@pytest.mark.parametrize("line", LINES)
def test_strict_excludes_allow_uncertified_before_anything_starts(
    cli: Cli, fake_lab: FakeLab, answers: Answers, line: str
) -> None:
    for name in ("up", "run", "compare", "validate"):
        answers(name, never)
    verb, *words = line.split()
    err = "--strict and --allow-uncertified exclude each other"
    call = Call(" ".join([verb, "--strict --allow-uncertified", *words]), 2, out="", err=err, asked=None)
    call.check(cli, fake_lab)


@pytest.mark.parametrize("option", ["", "--strict", "--allow-uncertified"])
def test_launch_and_train_pass_strict_on(
    cli: Cli, fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    passed: list[dict[str, Any]] = []

    def start(folder: object, kind: str, arguments: object, **options: Any) -> Any:
        passed.append(options)
        return job_runner.Started("j1", api.Path("/runs/r"))

    monkeypatch.setattr(job_runner, "start", start)
    for line in (f"train --detach {option}", f"launch --detach {option} -- true"):
        assert cli(line).status == 0
    assert passed == [{"strict": option == "--strict", "allow_uncertified": option == "--allow-uncertified"}] * 2


def test_host_refused_for_its_noise_alone_has_no_empty_table(cli: Cli, answers: Answers) -> None:
    answers("up", NoisyHost(NOISY.refusal, NOISY))
    result = Call("up metro-40km --strict", 3, out="", err="without --strict").check(cli)
    assert "verdict" not in result.err.partition("testbed: ")[0].partition("target:")[0]


def test_up_json_of_a_noisy_host(cli: Cli, fake_lab: FakeLab, answers: Answers) -> None:
    fake_lab.certificate = NOISY
    answers("up", fake_lab)
    certificate = json.loads(cli("up metro-40km --json").out)["certificate"]
    fields = {"verdict": "certified, noisy host", "certified": True, "noisy": True}
    assert {name: certificate[name] for name in fields} == fields
