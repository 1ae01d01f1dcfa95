"""Making the images: what becomes of the programs that are called for it, with stand-ins for them."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

import testbed
import testbed.lab.containers
from testbed.errors import HostError, UserError
from testbed.host.drivers import images
from testbed.host.linux import invocation
from testbed.host.linux.invocation import Invocation

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    "name",
    ["", "python:3.12-slim", "localhost:5000/a/b_c:1.0-X", "scale-across-testbed:0.1.0-gpu", f"a@sha256:{'0' * 64}"],
)
def test_names_that_docker_takes(name: str) -> None:
    images.refuse_bad_name(name)


@pytest.mark.parametrize("name", ["a b", "A", "x\ny: z", "bad::", "-a", "${HOME}", "a:", "../x", "é"])
def test_an_image_that_docker_would_refuse_is_refused_before_anything_is_fetched(name: str) -> None:
    with pytest.raises(UserError, match="expected an image name"):
        images.build(name)
    with pytest.raises(UserError, match="expected an image name"):
        images.build("python:3.12-slim", tag=name)
    with pytest.raises(UserError, match="expected an image name"):
        testbed.lab.containers.render(testbed.load("metro-40km"), image=name)


def test_an_image_holds_what_the_agents_need_by_the_packages_own_word() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [it for it in project["dependencies"] if it.startswith("prometheus-client")]
    assert sorted([*project["optional-dependencies"]["agents"], *needed]) == sorted([images.TORCH, *images.NEEDED])


def test_what_is_interrupted_has_ended_before_its_folder_goes(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    def interrupted(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        images._run(["sh", "-c", f"echo $$ > {pid}; echo Saved one; exec sleep 60"], interrupted, "Saved ")
    assert not Path("/proc", pid.read_text().strip()).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts: needs root")
def test_a_debootstrap_that_breaks_off_with_the_hosts_folders_mounted_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("of the host")
    tool = tmp_path / "debootstrap"
    tool.write_text(
        "#!/bin/sh -e\n"
        'for root; do :; done; mkdir -p "$root/dev"\n'
        f'mount --bind {precious} "$root/dev"; [ -e "$root/dev/file" ]\n'
        "echo E: no such mirror; exit 1\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(images, "client", lambda: None)
    monkeypatch.setattr(images.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(HostError, match=r"^debootstrap failed: E: no such mirror$"):
        images.make_base()
    assert sorted(it.name for it in tmp_path.iterdir()) == ["debootstrap", "precious"]
    assert (precious / "file").read_text() == "of the host"


class _Images:
    """Docker with one image of these labels."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.images = self
        self.labels = labels

    def get(self, name: str) -> _Images:
        return self


def labelled(monkeypatch: pytest.MonkeyPatch, **labels: str) -> None:
    found = {f"testbed.{key}": value for key, value in labels.items()}
    monkeypatch.setattr(images, "client", lambda: _Images(found))


def test_an_image_of_another_dockerfile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled(monkeypatch, version=testbed.__version__, agents=images._agents_digest())
    assert images.missing() == ""
    changed = tmp_path / "Dockerfile"
    changed.write_text((ROOT / "agents" / "Dockerfile").read_text() + "RUN true\n")
    monkeypatch.setattr(images, "_dockerfile", lambda: changed)
    assert "has different agents than this testbed; build a new one with: testbed image build" in images.missing()


@pytest.mark.parametrize(("euid", "line"), [(0, "sudo testbed image build"), (1000, "testbed image build")])
def test_who_needs_sudo_for_docker_builds_with_it(monkeypatch: pytest.MonkeyPatch, euid: int, line: str) -> None:
    """Behind sudo docker answered to root; to a user, it answered to that user."""
    labelled(monkeypatch, version="0.0.1")
    monkeypatch.setattr(invocation, "current", lambda: Invocation(become=("sudo",), privileged=False))
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    assert images.missing().endswith(f"build a new one with: {line}")


def test_an_extra_that_an_image_was_made_without_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {"version": testbed.__version__, "agents": images._agents_digest()}
    labelled(monkeypatch, **labels, **{"with": ""})
    said = images.missing(extras=["chaostoolkit"])
    assert said.endswith(
        "was built without chaostoolkit; build a new one with: testbed image build --with chaostoolkit"
    )
    labelled(monkeypatch, **labels, **{"with": "chaostoolkit agents"})
    assert images.missing(extras=["chaostoolkit"]) == ""
    labelled(monkeypatch, **{**labels, "agents": "others"}, **{"with": "chaostoolkit"})
    assert images.missing().endswith("build a new one with: testbed image build --with chaostoolkit")


def test_extras_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert images.requirements("chaostoolkit") == project["chaostoolkit"]
    assert set(project["dashboard"]) < set(images.requirements("test")), "an extra of an extra is what it stands for"
    with pytest.raises(UserError, match="unknown extra of the testbed 'chaos'; did you mean chaostoolkit"):
        images.requirements("chaos")
    monkeypatch.setattr(images.Path, "is_file", lambda path: False)
    lines = ["rich>=13", "mpi4py>=4; extra == 'validate'", 'jax ; python_version > "3" and extra == "validate"']
    monkeypatch.setattr(images.importlib.metadata, "requires", lambda name: lines)
    assert images.requirements("validate") == ["mpi4py>=4", "jax"]


def test_what_an_image_is_to_hold_is_written_down_beside_its_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(argv: list[str], say: object, telling: str, name: str = "") -> None:
        ran.append(argv)
        (tmp_path / "wheels" / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()

    monkeypatch.setattr(images, "_run", run)
    images._gather(tmp_path / "wheels", "3.11", None, False, ["mpi4py>=4"], lambda line: None)
    assert (tmp_path / "wheels" / "requirements.txt").read_text().splitlines() == ["torch", *images.NEEDED, "mpi4py>=4"]
    assert ran[-1][-1] == "mpi4py>=4"
    assert ran[-2][-1].endswith("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl")
    assert "requirements.txt" in (ROOT / "agents" / "Dockerfile").read_text()
