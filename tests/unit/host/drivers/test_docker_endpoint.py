"""Which docker is asked: as docker's own command would choose, and only one that makes containers on this machine; of a
lab the one that made it."""

from __future__ import annotations

import errno
import hashlib
import http.server
import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import host_stalls
import pytest
from builders.tables import table

from testbed.core.plan.resources import Containers
from testbed.errors import HostError, LabError, StorageError, UserError
from testbed.host import lab_nodes
from testbed.host.drivers import containerlab, docker_client, docker_endpoint, images
from testbed.host.drivers.container_place import ContainerPlace
from testbed.host.drivers.docker_endpoint import Elsewhere, Endpoint, ask, endpoint
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.keeper.journal import Journal
from testbed.lab import containers, status, teardown


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of docker's configuration, empty; nothing else names a docker."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    return tmp_path


def context(folder: Path, name: str, host: str, *, in_use: bool = False) -> None:
    """As ``docker context create`` and ``docker context use`` write them."""
    meta = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host}}}))
    if in_use:
        (folder / "config.json").write_text(json.dumps({"currentContext": name}))


@pytest.fixture
def mine(configuration: Path) -> Path:
    """The folder of a configuration in which context ``mine`` is in use."""
    context(configuration, "mine", "unix:///run/mine.sock", in_use=True)
    return configuration


@table(
    "variables, address",
    {
        "a context in use": ({}, "unix:///run/mine.sock"),
        "before it that of the environment": ({"DOCKER_CONTEXT": "other"}, "unix:///run/other.sock"),
        "the default one has the usual socket": ({"DOCKER_CONTEXT": "default"}, "unix:///var/run/docker.sock"),
        "before all the host of the environment": (
            {"DOCKER_CONTEXT": "default", "DOCKER_HOST": "unix:///run/first.sock"},
            "unix:///run/first.sock",
        ),
    },
)
def test_the_order_is_that_of_dockers_command(
    mine: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], address: str
) -> None:
    context(mine, "other", "unix:///run/other.sock")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert endpoint().address == address
    assert variables or "mine" in endpoint().said_by


def test_without_any_configuration_the_usual_socket_is_used() -> None:
    assert endpoint().address == "unix:///var/run/docker.sock"


@pytest.mark.parametrize("address", ["tcp://10.0.0.9:2375", "ssh://me@there", "tcp://127.0.0.1:http", "::"])
def test_a_docker_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(Elsewhere, match=r"DOCKER_HOST is .* expected a Unix socket of this machine"):
        docker_client.client()
    short, why = containers.why_not()
    assert short == "docker runs on another machine"
    assert address in why


def test_a_context_of_another_machine_is_refused_by_its_name(configuration: Path) -> None:
    context(configuration, "far", "ssh://me@there", in_use=True)
    with pytest.raises(Elsewhere, match=r"docker's context 'far' \(.*config.json\) is 'ssh://me@there'"):
        docker_client.refuse_silence()


def test_a_context_is_found_without_a_configuration_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`docker context create` writes none; DOCKER_CONTEXT names the context."""
    home = tmp_path_factory.mktemp("home")
    context(home / ".docker", "mine", "unix:///run/mine.sock")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")
    assert endpoint().socket == Path("/run/mine.sock")


def test_a_context_of_the_working_directory_is_not_used(
    configuration: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """docker's SDK searches there where docker has no config.json."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    context(elsewhere, "mine", "unix:///run/mine.sock")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(elsewhere))
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")
    with pytest.raises(UserError, match="unknown docker context 'mine'"):
        endpoint()


def test_a_context_that_cannot_be_read_is_named(mine: Path) -> None:
    next(mine.rglob("meta.json")).write_text("{")
    with pytest.raises(UserError, match=r"config.json: cannot read docker context 'mine'"):
        endpoint()


def test_a_context_that_there_is_not_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "none")
    with pytest.raises(UserError, match="DOCKER_CONTEXT: unknown docker context 'none'"):
        endpoint()


class Docker(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


Answers = dict[str, tuple[int, object]]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    """Answers of a docker daemon, by path; a test may change them."""
    answers: Answers = {"/version": (200, {"ApiVersion": "1.44", "KernelVersion": os.uname().release})}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, value = answers[self.path.partition("?")[0]]
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return ""

        def log_message(self, *words: object) -> None:
            return None

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/d.sock")
    with Docker(str(tmp_path / "d.sock"), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield answers
        server.shutdown()


def test_a_docker_that_answers_on_this_kernel_will_do(docker: Answers) -> None:
    docker_client.refuse_silence()
    assert docker_client.why_not() == ""


@table(
    "answer, error, text",
    {
        "another kernel is another machine": (
            (200, {"KernelVersion": "6.10.14-linuxkit"}),
            Elsewhere,
            r"another kernel \(6\.10\.14-linuxkit",
        ),
        "its error is passed on": ((500, {"message": "no space left on device"}), HostError, "no space left on device"),
    },
)
def test_a_docker_that_will_not_do(
    docker: Answers, answer: tuple[int, object], error: type[HostError], text: str
) -> None:
    docker["/version"] = answer
    with pytest.raises(error, match=text):
        docker_client.refuse_silence()


def test_a_frozen_docker_does_not_hold_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes the connection of one that is stopped; nobody answers."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/frozen.sock")
    with socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(str(tmp_path / "frozen.sock"))
        frozen.listen()
        began = time.monotonic()
        with pytest.raises(HostError, match=r"docker did not answer within 0\.2 s"):
            ask(endpoint(), "/version", 0.2)
        assert host_stalls.elapsed_s(began) < 5


def test_what_docker_answers_to_auto_is_a_reason_and_no_error(docker: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "could not look for the image: docker reports: layer does not exist"
    monkeypatch.setattr(images, "missing", Mock(side_effect=HostError(why)))
    monkeypatch.setattr(containers.containerlab, "missing", lambda: "")
    assert containers.why_not() == ("no matching image", why)


def test_the_bound_is_short() -> None:
    assert docker_endpoint.ASK_BOUND_S <= 10


# ---- of a lab


STEP = Containers(("east-0",), "name: metro\n")


def make_lab(folder: Path, *steps: Containers) -> LabFolder:
    """Make the folder of a lab whose keeper is dead."""
    lab = LabFolder(folder / "labs" / "metro")
    lab.path.mkdir(parents=True)
    journal = Journal.create(lab.journal, "metro", process.boot_id(), (1 << 22, 1))
    if steps:
        journal.done(journal.intend("lab", list(steps)))
    journal.close()
    return lab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LabFolder:
    """A lab of one container, made by the docker at ``d.sock``, whose keeper is dead."""
    monkeypatch.setattr(containerlab, "_HOSTS", tmp_path / "hosts")
    monkeypatch.setattr(containerlab, "_SSH", tmp_path)
    lab = make_lab(tmp_path, STEP)
    lab_nodes.keep_docker(lab, Endpoint(tmp_path / "d.sock"))
    return lab


@pytest.mark.parametrize("said", ["unix:///run/another.sock", "tcp://10.0.0.9:2375"])
def test_a_labs_docker_is_the_one_that_made_it_whatever_the_environment_says(
    lab: LabFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", said)
    assert lab_nodes.driver(lab).name == "containerlab"
    assert lab_nodes.docker(lab).address == f"unix://{tmp_path}/d.sock"


def test_what_a_full_disk_did_not_take_is_no_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    made = LabFolder(tmp_path)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StorageError, match=r"cannot write .*: No space left on device"):
        lab_nodes.keep_docker(made, Endpoint(tmp_path / "d.sock"))
    assert lab_nodes.driver(made).name == "netns", "it is taken down without asking any docker"


def test_a_lab_of_before_that_was_written_down_has_the_environments(
    lab: LabFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.docker.unlink()
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/another.sock")
    assert lab_nodes.docker(lab) == endpoint()


@pytest.mark.parametrize("kept", [b"", b"\xff", b"tcp://10.0.0.9:2375\n"])
def test_what_cannot_be_its_docker_is_no_reason_to_ask_another_one(
    lab: LabFolder, docker: Answers, kept: bytes
) -> None:
    lab.docker.write_bytes(kept)
    with pytest.raises(LabError, match=str(lab.docker)):
        teardown.down(lab)
    assert lab.journal.exists()


def test_without_its_docker_a_lab_is_not_said_to_be_gone(
    lab: LabFolder, docker: Answers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That of the environment answers, and knows of no such containers."""
    docker["/v1.44/containers/json"] = (200, [])
    lab_nodes.keep_docker(lab, Endpoint(tmp_path / "gone.sock"))
    where = rf"docker is not running; start it: .*no answer at {tmp_path}/gone.sock, the docker that created lab metro"
    with pytest.raises(HostError, match=rf"{where}.* remove the rest .* with: testbed down metro"):
        teardown.down(lab)
    assert [entry.step for entry in Journal.read(lab.journal).owned("lab")] == [STEP]
    with pytest.raises(HostError, match=where):
        lab_nodes.place(lab, "east-0")
    assert any("gone.sock" in why for why in status.troubles_of_containers(lab))


def test_of_a_lab_of_namespaces_no_docker_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = make_lab(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.9:2375")
    assert status.troubles_of_containers(lab) == []
    assert teardown.heal(lab, None) == []
    assert teardown.down(lab)


def test_its_docker_is_asked_where_the_environment_names_none_that_runs(
    lab: LabFolder, docker: Answers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    docker["/containers/json"] = docker["/v1.44/containers/json"] = (200, [])
    place = lab_nodes.place(lab, "east-0")
    assert isinstance(place, ContainerPlace)
    assert place.docker.socket == tmp_path / "d.sock"
    assert status.troubles_of_containers(lab) == []
    assert teardown.down(lab)
    assert not lab.path.exists()
