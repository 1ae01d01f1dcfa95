"""A Job of `render --kubernetes` in docker, from a bare Debian to a report with the Dockerfile's image.

The base image, debian:bookworm-slim for users, is debootstrap's minimal system, imported by that name. The claim and
the ConfigMap are folders laid out as the kubelet does it.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import ROOT, bare_machine, pods
from builders.commands import Done, captured, check, words_of
from builders.docker_daemon import Dockerd

from testbed.host.installation import TORCH_CPU_INDEX

pytestmark = [pytest.mark.e2e, pytest.mark.netns, *bare_machine.marks, pytest.mark.alone]

BUILD_BOUND_S, RUN_BOUND_S = 1500, 240
CERTIFICATES = "/usr/local/share/index.crt"
EXPERIMENT = """\
topology: mein lab.yaml
workload:
  command: [python, train.py, --steps, 20]
  env: {OMP_NUM_THREADS: 1}
  progress: {line: 'step (?P<step>\\d+)/\\d+ loss (?P<train_loss>[\\d.]+)', tokens: 64}
  steps: 20
  timeout: 3 min
"""


def here(folder: Path, line: str, *arguments: object) -> Done:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TESTBED_")}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'agents'}"
    return captured(
        [sys.executable, "-m", "testbed", *words_of(line, *arguments)], cwd=folder, env=environment, timeout=RUN_BOUND_S
    )


def docker(line: str, *arguments: object, bound_s: float = RUN_BOUND_S) -> Done:
    done = captured(words_of(f"docker {line}", *arguments), timeout=bound_s)
    print(line, *arguments, done.returncode, done.stdout, done.stderr, sep="\n")
    return done


def rendered(folder: Path, what: str, options: str = "") -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a Job's file, and its objects."""
    check(here(folder, f"render {what} --kubernetes --name run --output job.yaml -- {options}"))
    text = (folder / "job.yaml").read_text()
    return text, list(yaml.safe_load_all(text))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run a docker daemon with this machine's network, for `docker`."""
    tool = shutil.which("dockerd")
    if tool is None:
        pytest.skip("docker is not installed: apt-get install docker.io")
    if Path("/sys/class/net/docker0").exists():
        pytest.skip("docker0 is here: a docker of this machine would lose its bridge to the tests' own")
    folder = tmp_path_factory.mktemp("docker")
    made = Dockerd(tool, folder, folder / "data", apart=False)
    try:
        try:
            made.start()
        except RuntimeError as error:
            pytest.skip(f"docker cannot run here: {error}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", made.address)
            patch.setenv("DOCKER_BUILDKIT", "0")  # of which Debian's docker needs a plugin
            yield
    finally:
        made.end()
        made.release()


@pytest.fixture(scope="module")
def image(daemon: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the image by the command that a rendered file names, in a copy of the checkout; return its name."""
    folder = tmp_path_factory.mktemp("image")
    try:
        checkout = bare_machine.checkout(folder / "checkout")
        base = bare_machine.base(())
    except bare_machine.Unavailable as why:
        pytest.skip(str(why))
    text, documents = rendered(folder, "metro-40km")
    command = re.search(r"^# +docker build --tag (\S+) \.", text, re.MULTILINE)
    assert command is not None
    (container,) = documents[-1]["spec"]["template"]["spec"]["containers"]
    assert command[1] == container["image"]
    _import(base, "debian:bookworm-slim", folder / "base.tar")
    with _index() as torch_index:
        options = [*(["--build-arg", f"TORCH_INDEX={torch_index}"] if torch_index else []), "--network", "host"]
        built = docker("build", *options, "--tag", command[1], str(checkout), bound_s=BUILD_BOUND_S)
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-1000:]
    return command[1]


def _import(root: Path, name: str, archive: Path) -> None:
    """Import a root file system as an image, with the certificates of this machine's package index."""
    changes = []
    with tarfile.open(archive, "w") as tar:
        tar.add(root, arcname=".")
        if os.environ.get("PIP_CERT"):
            tar.add(Path(os.environ["PIP_CERT"]).resolve(), arcname=f".{CERTIFICATES}")
            changes += ["--change", f"ENV PIP_CERT={CERTIFICATES}"]
    check(docker("import", *changes, str(archive), name))


@contextlib.contextmanager
def _index() -> Iterator[str]:
    """Serve the wheel of torch that the other tests use, as a package index; empty if there is none."""
    wheels = bare_machine.wheels()
    if wheels is None:
        try:
            urllib.request.urlopen(TORCH_CPU_INDEX, timeout=10).close()
        except OSError as error:
            pytest.skip(f"TESTBED_WHEELS has no torch wheel, and {TORCH_CPU_INDEX} is not available: {error}")
        yield ""
        return

    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return super().translate_path(path.removeprefix("/torch"))

    handler = functools.partial(Handler, directory=str(wheels))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_program_runs_in_the_pod_and_its_report_comes_out(image: str, tmp_path: Path) -> None:
    for name in ("jobs", "claim", "config", "fetched"):
        (tmp_path / name).mkdir()
    (tmp_path / "mein lab.yaml").write_text((ROOT / "topologies" / "metro-single.yaml").read_text())
    (tmp_path / "jobs" / "one.yaml").write_text(EXPERIMENT)
    shutil.copy(ROOT / "examples" / "own_script" / "train.py", tmp_path / "jobs")
    _, (config, job) = rendered(tmp_path, "jobs/one.yaml", "--allow-uncertified")
    volume = pods.config_volume(job, config, tmp_path / "config")
    ran = docker("run", *pods.argv(job, "pod", tmp_path / "claim", volume))
    assert ran.returncode in (0, 1), "1: measured, and bad, as on a busy machine"
    assert "each ended with status 0" in " ".join(ran.stdout.split())
    (run,) = (tmp_path / "claim").iterdir()
    assert (run / "index.html").stat().st_size > 100_000

    # As kubectl cp does it: tar in a second pod that mounts the claim, extracted here.
    words = ["run", "--rm", "--network", "none", "--volume", f"{tmp_path / 'claim'}:/runs:ro", image]
    sent = subprocess.run(["docker", *words, "tar", "cf", "-", f"/runs/{run.name}"], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-xf", "-", "-C", tmp_path / "fetched"], input=sent.stdout, check=True)
    fetched = tmp_path / "fetched" / "runs" / run.name
    assert {it.name for it in fetched.iterdir()} == {it.name for it in run.iterdir()}
    assert here(tmp_path, "report", str(fetched)).returncode == ran.returncode
    assert docker("rm pod").returncode == 0


def test_a_pod_that_is_deleted_undoes_its_lab_and_may_be_repeated(image: str, tmp_path: Path) -> None:
    _, (job,) = rendered(tmp_path, "metro-single", "--allow-uncertified --steps 5000")
    (tmp_path / "claim").mkdir()
    check(docker("run --detach", *pods.argv(job, "deleted", tmp_path / "claim")))
    until = time.monotonic() + RUN_BOUND_S
    while "agents: 4 ranks" not in (logs := captured(["docker", "logs", "deleted"]).stderr):
        assert time.monotonic() < until, logs
        time.sleep(0.2)
    docker("stop deleted")
    status = int(docker("inspect --format", "{{.State.ExitCode}}", "deleted").stdout)
    policy = job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
    assert status not in (0, 137, *policy), "neither done, nor killed after the grace period, nor final"
    assert "everything was undone" in docker("logs deleted").stderr
    assert docker("rm deleted").returncode == 0
