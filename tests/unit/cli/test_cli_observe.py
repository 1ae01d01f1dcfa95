"""`testbed observe`: what it says, and when it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from builders.cli_fixtures import Cli, FakeLab, cli, fake_lab

from testbed.cli import inspect_verbs
from testbed.errors import LabError, UserError

__all__ = ["cli", "fake_lab"]  # fixtures


class Observed(FakeLab):
    """Its Prometheus is asked for three times, then it has ended."""

    port: int | None = None
    left = ["172.31.0.1:9090"] * 3

    @property
    def prometheus(self) -> str:
        return self.left.pop() if self.left else ""

    @contextlib.contextmanager
    def observe(self, port: int) -> Iterator[SimpleNamespace]:
        self.port = port
        yield SimpleNamespace(url=f"http://127.0.0.1:{port}")
        self.port = None


@pytest.fixture
def observed(fake_lab: FakeLab, monkeypatch: pytest.MonkeyPatch) -> FakeLab:
    fake_lab.__class__ = Observed
    monkeypatch.setattr(inspect_verbs, "WATCH_EVERY_S", 0.0)
    return fake_lab


def test_observe_prints_the_url_alone_on_stdout_and_ends_with_the_server(cli: Cli, observed: Observed) -> None:
    result = cli("observe metro-40km --port 19090")
    assert result.out == "http://127.0.0.1:19090\n"
    assert "Grafana: add a Prometheus data source with URL http://127.0.0.1:19090" in " ".join(result.err.split())
    assert result.status == LabError.exit_code
    assert f"Prometheus of lab {observed.name} has ended" in result.err
    assert observed.asked[0] == ("attach", "metro-40km")
    assert observed.port is None, "the forwarder is closed"


def test_observe_takes_the_lab_as_an_option(cli: Cli, observed: Observed) -> None:
    cli("observe -l other")
    assert observed.asked[0] == ("attach", "other")


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_observe_refuses_what_is_no_port(cli: Cli, observed: Observed, port: str) -> None:
    result = cli(f"observe --port {port}")
    assert result.status == UserError.exit_code
    assert "Traceback" not in result.err
