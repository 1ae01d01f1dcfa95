"""``--strict`` and ``--allow-uncertified`` of commands that run jobs or start labs."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from builders.cli_fixtures import Cli, FakeLab, certificate_of, cli, fake_lab, noisy

from testbed.cli import app
from testbed.errors import NoisyHost
from testbed.lab import api, job_runner

__all__ = ["cli", "fake_lab"]  # fixtures

VERBS = {
    "up": ("metro-40km",),
    "run": ("metro-40km",),
    "compare": ("metro-40km", "--strategies", "ddp,local-sgd"),
    "validate": ("ring",),
    "audit": ("metro-40km", "--measure"),
    "launch": ("--", "true"),
    "train": (),
}


def with_option(option: str) -> set[str]:
    commands = typer.main.get_command(app.app).commands  # type: ignore[attr-defined]
    return {name for name, command in commands.items() if any(option in parameter.opts for parameter in command.params)}


def test_commands_with_allow_uncertified_and_certify_have_strict() -> None:
    assert with_option("--allow-uncertified") == set(VERBS)
    assert with_option("--strict") == {*VERBS, "certify"}


@pytest.mark.parametrize("verb", VERBS)
def test_both_options_are_status_2_before_anything_starts(
    cli: Cli, fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    for name in ("up", "run", "compare", "validate"):
        monkeypatch.setattr(api, name, lambda *a, **k: pytest.fail("started"))
    result = cli(verb, "--strict", "--allow-uncertified", *VERBS[verb])
    assert (result.status, result.out) == (2, "")
    assert "--strict and --allow-uncertified exclude each other" in result.err
    assert fake_lab.asked == []


@pytest.mark.parametrize("option", [(), ("--strict",), ("--allow-uncertified",)])
def test_launch_and_train_pass_them_on(
    cli: Cli, fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...]
) -> None:
    passed: list[dict[str, Any]] = []

    def start(folder: object, kind: str, arguments: object, **options: Any) -> Any:
        passed.append(options)
        return job_runner.Started("j1", api.Path("/runs/r"))

    monkeypatch.setattr(job_runner, "start", start)
    for words in (("train", "--detach"), ("launch", "--detach", *option, "--", "true")):
        assert cli(*words, *(option if words[0] == "train" else ())).status == 0
    assert passed == [{"strict": "--strict" in option, "allow_uncertified": "--allow-uncertified" in option}] * 2


def test_a_host_refused_for_its_noise_alone_has_no_empty_table(
    cli: Cli, fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = noisy(certificate_of(fake_lab.topology))

    def up(*words: object, **options: object) -> FakeLab:
        raise NoisyHost(certificate.refusal, certificate)

    monkeypatch.setattr(api, "up", up)
    result = cli("up", "metro-40km", "--strict")
    assert (result.status, result.out) == (3, "")
    assert "verdict" not in result.err.partition("testbed: ")[0].partition("target:")[0]
    assert "without --strict" in result.err


def test_up_json_of_a_noisy_host(cli: Cli, fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    fake_lab.certificate = noisy(certificate_of(fake_lab.topology))
    monkeypatch.setattr(api, "up", lambda *a, **k: fake_lab)
    certificate = json.loads(cli("up", "metro-40km", "--json").out)["certificate"]
    assert (certificate["verdict"], certificate["certified"], certificate["noisy"]) == (
        "certified, noisy host",
        True,
        True,
    )
