"""`up --observe` on containers: Prometheus runs on the host, in the network namespace of the container `mgmt`."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from builders.commands import run_line
from builders.conditions import ALONE, NEEDS_PROMETHEUS
from builders.labs import bring_up
from contract.lab_contract import FILE
from oracles import oracle

import testbed

pytestmark = [*ALONE, NEEDS_PROMETHEUS]


def asked(url: str, expression: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v1/query?query={urllib.parse.quote(expression)}", timeout=10) as answer:
        return list(json.load(answer)["data"]["result"])


@pytest.mark.thorough
def test_ranks_gateways_and_fibers_are_seen_and_nothing_is_left_of_it(
    containers: str, lab_name: str, tmp_path: Path, state_folder: Path
) -> None:
    path, folder = tmp_path / "two.yaml", state_folder / "labs" / lab_name / "prometheus"
    path.write_text(FILE)
    lab = bring_up(lab_name, testbed.load(str(path)), agents=True, driver="containerlab", observe=True)
    try:
        (server,) = oracle.working_in(folder)
        mgmt = run_line("docker inspect --format", "{{.State.Pid}}", f"clab-{lab_name}-mgmt").strip()
        assert Path(f"/proc/{server}/ns/net").readlink() == Path(f"/proc/{mgmt}/ns/net").readlink()
        with lab.observe(0) as forwarder:
            oracle.until(lambda: len(asked(forwarder.url, "up == 1")) == 3, 20.0, "two ranks and the keeper are up")
            sent = asked(forwarder.url, 'testbed_transmit_bytes_total{node="east-gw",interface="north"}')
            assert float(sent[0]["value"][1]) > 0
            with lab.cut("south"):
                oracle.until(lambda: len(asked(forwarder.url, "testbed_link_up == 0")) == 2, 5.0, "both ends are dark")
            oracle.until(lambda: not asked(forwarder.url, "testbed_link_up == 0"), 5.0, "both are lit")
        # A container is no shelter: what runs in its network is not its child, and does not end with it.
        oracle.kill(oracle.keeper_pids(lab_name, state_folder))
    finally:
        assert testbed.down(lab_name) is True
    assert oracle.working_in(folder) == []
