"""Making the images: what becomes of the programs that are called for it, with stand-ins for them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from builders.processes import is_gone, needs_root, write_program
from builders.tables import table

import testbed
import testbed.lab.containers
from testbed.errors import HostError, UserError
from testbed.host.drivers import images
from testbed.host.linux import invocation
from testbed.host.linux.invocation import Invocation

ROOT = Path(__file__).resolve().parents[4]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CURRENT = {"version": testbed.__version__, "agents": images.agents_digest()}
"""Labels of an image of this testbed."""


@pytest.mark.parametrize(
    "name",
    ["", "python:3.12-slim", "localhost:5000/a/b_c:1.0-X", "scale-across-testbed:0.1.0-gpu", f"a@sha256:{'0' * 64}"],
)
def test_names_that_docker_takes(name: str) -> None:
    images.refuse_bad_name(name)


@pytest.mark.parametrize("name", ["a b", "A", "x\ny: z", "bad::", "-a", "${HOME}", "a:", "../x", "é"])
def test_an_image_that_docker_would_refuse_is_refused_before_anything_is_fetched(name: str) -> None:
    for use in (
        lambda: images.build(name),
        lambda: images.build("python:3.12-slim", tag=name),
        lambda: testbed.lab.containers.render(testbed.load("metro-40km"), image=name),
    ):
        with pytest.raises(UserError, match="expected an image name"):
            use()


def test_an_image_holds_what_the_agents_need_by_the_packages_own_word() -> None:
    needed = [line for line in PROJECT["dependencies"] if line.startswith("prometheus-client")]
    assert sorted([*EXTRAS["agents"], *needed]) == sorted([images.TORCH, *images.NEEDED])


def test_what_is_interrupted_has_ended_before_its_folder_goes(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"echo $$ > {pid}; echo Saved one; exec sleep 60"
    with pytest.raises(KeyboardInterrupt):
        images.run_program(["sh", "-c", script], Mock(side_effect=KeyboardInterrupt), "Saved ")
    assert is_gone(int(pid.read_text()))


@needs_root
def test_a_debootstrap_that_breaks_off_with_the_hosts_folders_mounted_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (precious := tmp_path / "precious").mkdir()
    (precious / "file").write_text("of the host")
    write_program(
        tmp_path / "debootstrap",
        "#!/bin/sh -e\n"
        'for root; do :; done; mkdir -p "$root/dev"\n'
        f'mount --bind {precious} "$root/dev"; [ -e "$root/dev/file" ]\n'
        "echo E: no such mirror; exit 1\n",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(images, "client", lambda: None)
    monkeypatch.setattr(images.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(HostError, match=r"^debootstrap failed: E: no such mirror$"):
        images.make_base()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["debootstrap", "precious"]
    assert (precious / "file").read_text() == "of the host"


Label = Callable[..., None]


@pytest.fixture
def label(monkeypatch: pytest.MonkeyPatch) -> Label:
    """Have docker's one image carry these labels."""

    def label(**labels: str) -> None:
        image = SimpleNamespace(labels={f"testbed.{key}": value for key, value in labels.items()})
        client = SimpleNamespace(images=SimpleNamespace(get=lambda name: image))
        monkeypatch.setattr(images, "client", lambda: client)

    return label


def test_an_image_of_another_dockerfile_is_refused(
    label: Label, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label(**CURRENT)
    assert images.missing() == ""
    changed = tmp_path / "Dockerfile"
    changed.write_text((ROOT / "agents" / "Dockerfile").read_text() + "RUN true\n")
    monkeypatch.setattr(images, "_dockerfile", lambda: changed)
    assert "has different agents than this testbed; build a new one with: testbed image build" in images.missing()


@table("euid, line", {"root": (0, "sudo testbed image build"), "a user": (1000, "testbed image build")})
def test_who_needs_sudo_for_docker_builds_with_it(
    label: Label, monkeypatch: pytest.MonkeyPatch, euid: int, line: str
) -> None:
    """Behind sudo docker answered to root; to a user, it answered to that user."""
    label(version="0.0.1")
    monkeypatch.setattr(invocation, "current", lambda: Invocation(become=("sudo",), privileged=False))
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    assert images.missing().endswith(f"build a new one with: {line}")


def test_an_extra_that_an_image_was_made_without_is_named(label: Label) -> None:
    build = "build a new one with: testbed image build --with chaostoolkit"
    label(**CURRENT, **{"with": ""})
    assert images.missing(extras=["chaostoolkit"]).endswith(f"was built without chaostoolkit; {build}")
    label(**CURRENT, **{"with": "chaostoolkit agents"})
    assert images.missing(extras=["chaostoolkit"]) == ""
    label(**CURRENT | {"agents": "others", "with": "chaostoolkit"})
    assert images.missing().endswith(build)


def test_extras_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert images.requirements("chaostoolkit") == EXTRAS["chaostoolkit"]
    assert set(EXTRAS["dashboard"]) < set(images.requirements("test")), "an extra of an extra is what it stands for"
    with pytest.raises(UserError, match="unknown extra of the testbed 'chaos'; did you mean chaostoolkit"):
        images.requirements("chaos")
    monkeypatch.setattr(images.Path, "is_file", lambda path: False)
    lines = ["rich>=13", "mpi4py>=4; extra == 'validate'", 'jax ; python_version > "3" and extra == "validate"']
    monkeypatch.setattr(images.importlib.metadata, "requires", lambda name: lines)
    assert images.requirements("validate") == ["mpi4py>=4", "jax"]


def test_what_an_image_is_to_hold_is_written_down_beside_its_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, torch = tmp_path / "wheels", "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
    monkeypatch.setattr(images, "run_program", ran := Mock(side_effect=lambda *_: (wheels / torch).touch()))
    images.download_packages(wheels, "3.11", None, False, ["mpi4py>=4"], lambda line: None)
    assert (wheels / "requirements.txt").read_text().splitlines() == ["torch", *images.NEEDED, "mpi4py>=4"]
    *_, needed, last = (call.args[0][-1] for call in ran.call_args_list)
    assert needed.endswith(torch)
    assert last == "mpi4py>=4"
    assert "requirements.txt" in (ROOT / "agents" / "Dockerfile").read_text()
