"""Configuration of an observed lab's Prometheus: parsed as YAML and JSON, and the Step that starts it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from oracles import exported_series, oracle

from testbed.core.plan import build, codec
from testbed.core.plan.resources import Prometheus, Rank
from testbed.core.prometheus import scrape_config
from testbed.errors import StorageError
from testbed.host.files import catalog
from testbed.host.metrics import prometheus_server

RANK = Rank(3, "west-1", "west", "172.31.0.5", 9100)


def test_two_jobs_whose_targets_are_in_files() -> None:
    told = yaml.safe_load(scrape_config.configuration("metro-40km"))
    assert told["global"]["scrape_interval"] == "1s"
    assert told["global"]["external_labels"] == {"lab": "metro-40km"}
    assert told["rule_files"] == ["rules.yml"]
    assert {job["job_name"]: job["file_sd_configs"] for job in told["scrape_configs"]} == {
        "agents": [{"files": ["targets/agents.json"]}],
        "lab": [{"files": ["targets/lab.json"]}],
    }
    assert all(job["honor_labels"] for job in told["scrape_configs"])


@pytest.mark.parametrize("name", ["1e3", "007", "null", "no", "0x1f"])
def test_a_name_that_yaml_would_take_for_something_else_stays_a_name(name: str) -> None:
    assert yaml.safe_load(scrape_config.configuration(name))["global"]["external_labels"]["lab"] == name


def test_each_rank_is_a_target_with_its_own_labels() -> None:
    assert json.loads(scrape_config.agents_targets("mine", [RANK])) == [
        {"targets": ["172.31.0.5:9100"], "labels": {"lab": "mine", "site": "west", "node": "west-1", "rank": "3"}}
    ]
    assert json.loads(scrape_config.agents_targets("mine", [])) == []
    assert json.loads(scrape_config.lab_targets("mine", "172.31.0.1:9101")) == [
        {"targets": ["172.31.0.1:9101"], "labels": {"lab": "mine"}}
    ]


def test_what_is_stored_is_bounded_and_what_listens_is_told_where() -> None:
    said = dict(word.removeprefix("--").split("=", 1) for word in scrape_config.arguments("172.31.0.1:9090"))
    assert said["web.listen-address"] == "172.31.0.1:9090"
    assert re.fullmatch(r"\d+MB", said["storage.tsdb.retention.size"])
    assert not Path(said["config.file"]).is_absolute() and not Path(said["storage.tsdb.path"]).is_absolute()


def test_names_and_kinds_of_series_go_together() -> None:
    """https://prometheus.io/docs/practices/naming/"""
    assert len({it.name for it in exported_series.ALL}) == len(exported_series.ALL) > 25
    for it in exported_series.ALL:
        assert re.fullmatch(r"testbed_[a-z]+(_[a-z]+)*", it.name)
        assert it.name.endswith("_total") == (it.kind == "counter")
        assert it.name.endswith("_info") == (it.kind == "info")
        assert it.meaning.endswith(".")
        assert not {"lab", "job", "instance", "le"} & set(it.labels), "those are Prometheus' own"


def test_the_step_is_the_last_one_and_there_only_on_request() -> None:
    topology = catalog.load_topology("metro-40km")
    *before, last = build.build(topology, observe=True)
    assert tuple(before) == build.build(topology)
    assert isinstance(last, Prometheus)
    assert [rank.node for rank in last.ranks] == list(topology.node_names)
    assert codec.from_dict(json.loads(json.dumps(codec.to_dict(last)))) == last
    assert last.within == (), "it is ended by name, whatever becomes of the namespace that it is in"
    alone = build.build(topology, agents=False, observe=True)[-1]
    assert isinstance(alone, Prometheus) and alone.ranks == ()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "prometheus").write_text("a file")
    with pytest.raises(StorageError, match=r"cannot write .*prometheus: File exists"):
        prometheus_server.prepare(tmp_path / "prometheus", {"prometheus.yml": "x"})


def test_files_can_be_read_by_the_server_whatever_our_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        prometheus_server.prepare(tmp_path / "p", {"prometheus.yml": "x", "targets/lab.json": "[]"})
    finally:
        os.umask(before)
    modes = {str(it.relative_to(tmp_path)): it.stat().st_mode & 0o777 for it in tmp_path.rglob("*")}
    assert modes.pop("p/data") & 0o077 == 0, "nobody else's"
    assert modes == {"p": 0o755, "p/prometheus.yml": 0o644, "p/targets": 0o755, "p/targets/lab.json": 0o644}


def test_a_server_is_found_by_the_folder_that_it_works_in(tmp_path: Path) -> None:
    """And nobody else in that folder, and no server in another one."""
    mine, other = tmp_path / "mine" / "prometheus", tmp_path / "other" / "prometheus"
    server = [sys.executable, "-c", "import time; time.sleep(60)", f"--config.file={scrape_config.CONFIG_FILE}"]
    begun = []
    for folder, argv in ((mine, server), (mine, server[:3]), (other, server)):
        folder.mkdir(parents=True, exist_ok=True)
        begun.append(subprocess.Popen(argv, cwd=folder, env={**os.environ}))
    try:
        # execve(2) closes the pipe that Popen waits for before the kernel knows the new program's arguments.
        for it in begun:
            oracle.until(Path(f"/proc/{it.pid}/cmdline").read_bytes, 5.0, "arguments in /proc")
        prometheus_server.end_left_in(mine)
        oracle.until(lambda: begun[0].poll() is not None, 5.0, "the server in this folder has ended")
        assert [it.poll() for it in begun[1:]] == [None, None]
        prometheus_server.end_left_in(tmp_path / "never-made")
    finally:
        for it in begun:
            it.kill()
            it.wait()
