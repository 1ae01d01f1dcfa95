"""The strategy of docs/strategies.md, installed by pip as its reader does it, trained for real; and packages that
unprivileged ranks cannot find, read or import."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from builders import ROOT
from builders.commands import TESTBED, Done, captured, check, words_of
from builders.conditions import THOROUGH, TORCH
from builders.json_files import read_json
from oracles import oracle

pytestmark = [*THOROUGH, TORCH]

EXAMPLE = ROOT / "examples" / "own_strategy"
EXPERIMENT = """
topology: metro-40km
workload: {strategy: plain-average, every: 5, steps: 40, checkpoint: 20, compute: 100ms}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, copied, because setuptools builds beside the source, and installed without the network."""
    folder = tmp_path_factory.mktemp("package")
    source, target = folder / "source", folder / "site"
    shutil.copytree(EXAMPLE, source)
    install = "-m pip install --quiet --no-deps --no-build-isolation --no-index --target"
    oracle.run(sys.executable, *words_of(install, target, source))
    target.chmod(0o755)
    return target


def call(line: str, *arguments: object, site: Path | None) -> Done:
    path = os.environ["PYTHONPATH"] + (f"{os.pathsep}{site}" if site else "")
    environment = {**os.environ, "PYTHONPATH": path}
    return captured([*TESTBED, *words_of(line, *arguments)], env=environment, timeout=120)


def test_it_trains_and_every_check_holds(lab_name: str, installed: Path, tmp_path: Path) -> None:
    file, runs = tmp_path / "own.yaml", tmp_path / "runs"
    file.write_text(EXPERIMENT)
    check(call("run", file, "--name", lab_name, "--runs", runs, "--allow-uncertified", site=installed))
    (run,) = runs.iterdir()
    report = read_json(run / "report.json")
    assert report["verdict"] == "pass"
    assert report["wire"]["ok"] is True, report["wire"]
    assert [it["id"] for it in report["checkers"] if it["holds"] is not True] == []
    ends = [json.loads(it.read_text().splitlines()[-1]) for it in sorted((run / "ranks").glob("rank-?.jsonl"))]
    assert [(it["status"], it["step"]) for it in ends] == [("ok", 40)] * 4
    assert len({it["parameters_sha256"] for it in ends}) == 1
    assert "plain-average" in (run / "index.html").read_text()


def test_packages_that_ranks_cannot_use_are_refused_or_named(lab_name: str, installed: Path, tmp_path: Path) -> None:
    lab_words = ["train", "-l", lab_name, "--steps", "4", "--compute", "50ms", "--allow-uncertified", "--strategy"]
    check(call(f"up metro-40km --name {lab_name} --allow-uncertified", site=None))
    try:
        # The lab came up without the package's folder on PYTHONPATH: this command finds it, ranks do not.
        unknown = call(*lab_words, "plain-average:every=2", site=installed)
        assert unknown.returncode == 1
        for words in ("unknown strategy 'plain-average'", "no package that this rank finds registers it", "uid 60700"):
            assert words in " ".join(unknown.stdout.split()), unknown.stdout
        barred = tmp_path / "barred"
        shutil.copytree(installed, barred)
        barred.chmod(0o700)
        private = call(*lab_words, "plain-average:every=2", site=barred)
        assert private.returncode == 2
        assert f"who cannot read {barred}" in private.stderr.replace("\n", " "), private.stderr
    finally:
        call(f"down {lab_name}", site=None)


def test_a_module_that_only_ranks_cannot_import_is_named(lab_name: str, installed: Path, tmp_path: Path) -> None:
    """It imports a file that root alone may read, so the command can use it."""
    site, file, runs = tmp_path / "site", tmp_path / "own.yaml", tmp_path / "runs"
    shutil.copytree(installed, site)
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    (secret / "constants").write_text("2")
    module = site / "plain_average.py"
    module.write_text(f"FACTOR = int(open({str(secret / 'constants')!r}).read())\n{module.read_text()}")
    file.write_text(EXPERIMENT)
    done = call("run", file, "--name", lab_name, "--runs", runs, "--allow-uncertified", site=site)
    assert done.returncode == 1, done.stderr
    words = "registered by plain-average as plain_average: this rank, uid 60700, cannot import it: PermissionError:"
    assert words in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
