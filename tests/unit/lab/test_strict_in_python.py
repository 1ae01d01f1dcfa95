"""``strict`` of the functions that bring labs up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from builders.cli_fixtures import certificate_of, noisy

from testbed.chaos import actions
from testbed.errors import UserError
from testbed.host.files import catalog
from testbed.lab import api, deploy
from testbed.lab.run import measured_audit

METRO = catalog.load_topology("metro-40km")


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (api.up, ("metro-40km",)),
        (api.run, ("metro-40km",)),
        (api.compare, ("metro-40km", "ddp,local-sgd")),
        (api.validate, (["torch-gloo"],)),
        (measured_audit.measure, (METRO,)),
    ],
)
def test_both_options_are_refused_before_anything_is_built(
    begin: Callable[..., object], words: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy, "choose", lambda *words: pytest.fail("it began to bring a lab up"))
    with pytest.raises(UserError, match="--strict and --allow-uncertified exclude each other"):
        begin(*words, strict=True, allow_uncertified=True)


def test_the_action_up_passes_strict_on_and_returns_noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    lab = SimpleNamespace(name="metro", certificate=noisy(certificate_of(METRO)))
    monkeypatch.setattr(api, "up", lambda topology, **words: options.update(words) or lab)
    monkeypatch.setattr(actions.session, "remember", lambda made: None)
    assert actions.up("metro-40km", strict=True) == {"lab": "metro", "certified": True, "noisy": True}
    assert (options["strict"], options["allow_uncertified"]) == (True, False)
