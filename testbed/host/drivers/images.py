"""Find and build the image of a lab's containers, and a base image for hosts that reach no registry.

Everything that goes into an image is downloaded on the host, by this Python's pip. So a host that can install packages
(from an index, a mirror or a folder of wheels) can build the image, and the build itself needs no network unless the
base lacks iproute2.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from testbed.core.plan.resources import LABEL
from testbed.core.user_text import shown
from testbed.errors import HostError, MissingTool, StorageError, UserError
from testbed.host import installation, runner
from testbed.host.drivers import image_leftovers
from testbed.host.drivers.containerlab import IMAGE_USER
from testbed.host.drivers.docker_client import NotThere, client, translated
from testbed.host.installation import TORCH_CPU_INDEX, requirements
from testbed.host.linux import invocation
from testbed.version import __version__

__all__ = [
    "BASE",
    "SLIM",
    "Say",
    "agents_digest",
    "build",
    "build_command",
    "download_packages",
    "make_base",
    "missing",
    "reference",
    "refuse_bad_name",
    "requirements",
    "run_program",
]

Say = Callable[[str], None]
"""Called with one line of progress."""

SLIM: Final = "python:3.12-slim"
BASE: Final = "scale-across-testbed-base:bookworm"
"""Output of ``image base``: Debian 12 with Python 3.11 and the programs that the lab's containers call."""

REPOSITORY: Final = "scale-across-testbed"
NEEDED: Final = (
    "numpy>=1.26",
    "isal>=1.7,<2; platform_machine == 'x86_64' or platform_machine == 'aarch64'",
    "prometheus-client>=0.20",
)
TORCH: Final = "torch>=2.4"
_PLATFORMS: Final = (*(f"manylinux_2_{minor}" for minor in range(28, 4, -1)), "manylinux2014", "manylinux2010")
"""pip matches only the platform tags listed (PEP 600): Debian 12 has glibc 2.36, torch wheels need 2.28."""
_DEBOOTSTRAP: Final = ("python3", "python3-venv", "iproute2", "iputils-ping", "iperf3")
_BOUND_S: Final = 1800
_END_BOUND_S: Final = 10.0
NEEDED_BYTES: Final = 4_000_000_000
_NAME: Final = re.compile(
    r"([a-zA-Z0-9][a-zA-Z0-9.-]*(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
"""An image's name, close to docker's own grammar (github.com/distribution/reference)."""
_MADE: Final = re.compile("---> ([0-9a-f]{12,64})")
"""How docker prints the image that a step made, or that it remembered."""


def reference(version: str = __version__, gpu: bool = False) -> str:
    """Return name and tag of the image for a version of the testbed."""
    return f"{REPOSITORY}:{version}" + ("-gpu" if gpu else "")


def refuse_bad_name(name: str) -> None:
    """Raise UserError unless ``name`` is empty or a valid image name.

    Docker itself would report it only after all downloads, or when the lab is deployed.
    """
    if name and not _NAME.fullmatch(name):
        raise UserError(f"expected an image name [HOST/]NAME[:TAG], lower-case except for the TAG, got {shown(name)}")


def missing(image: str = "", extras: Sequence[str] = ()) -> str:
    """Return why containers cannot be created from ``image`` (default: this version's); empty if they can.

    ``extras`` of the testbed must be installed in it too. Raises as :func:`client`.
    """
    name = image or reference()
    try:
        with translated(f"look for the image {name}"):
            docker_image = client().images.get(name)
    except NotThere:
        with translated("list images"):
            others = sorted(tag for local_image in client().images.list(REPOSITORY) for tag in local_image.tags)
        available = f" (available: {', '.join(others)})" if others else ""
        return f"unknown image {name}{available}; build it with: {build_command()}"
    version = docker_image.labels.get(f"{LABEL}.version", "")
    if version != __version__:
        return (
            f"image {name} {f'is for testbed {version}' if version else 'was not built by testbed'}, expected"
            f" {__version__}; build a new one with: {build_command()}"
        )
    holds = docker_image.labels.get(f"{LABEL}.with", "").split()
    options = [word for extra in dict.fromkeys([*holds, *extras]) for word in ("--with", extra)]
    again = build_command(*options)
    if docker_image.labels.get(f"{LABEL}.agents") != agents_digest():
        return f"image {name} has different agents than this testbed; build a new one with: {again}"
    if lacking := [extra for extra in extras if extra not in holds]:
        return f"image {name} was built without {', '.join(lacking)}; build a new one with: {again}"
    return ""


def build_command(*options: str) -> str:
    """Return the command line that builds an image, for a user whose docker answered this process.

    If that was root's, behind sudo, the user's own shell may not be permitted to use docker.
    """
    return invocation.command("image", "build", *options, root=os.geteuid() == 0)


def build(
    base: str = "",
    *,
    wheels: Path | None = None,
    gpu: bool = False,
    tag: str = "",
    extras: Sequence[str] = (),
    say: Say = lambda line: None,
) -> str:
    """Build the image of this version and return its name.

    Args:
        base: image to build on; default: :data:`BASE` if it exists, else :data:`SLIM`.
        wheels: folder of wheels; packages found there are not downloaded.
        gpu: install torch with CUDA (several GB) instead of its CPU build.
        tag: name of the image, instead of :func:`reference`.
        extras: of the testbed, to be installed too: the libraries that ``testbed validate`` tests.
        say: called with progress, line by line.

    Raises HostError, MissingTool, NotAllowed, StorageError, UserError.
    """
    if wheels is not None and not wheels.is_dir():
        raise UserError(f"--wheels must name a folder of wheels, got {wheels}")
    for given in (base, tag):
        refuse_bad_name(given)
    extras = tuple(dict.fromkeys(extras))
    extra_requirements = [requirement for extra in extras for requirement in requirements(extra)]
    chosen, name = base or _default_base(), tag or reference(gpu=gpu)
    began = time.monotonic()
    say(f"building {name} takes one to three minutes on two cores, and the download of {'GBs' if gpu else '250 MB'}"
        " unless --wheels has the packages")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="testbed-image-") as folder:
        context = Path(folder)
        if shutil.disk_usage(context).free < NEEDED_BYTES:
            raise StorageError(
                f"{context.parent}: less than {NEEDED_BYTES // 10**9} GB free; set TMPDIR to another folder"
            )
        say(f"base image {chosen}")
        python = _python_of(chosen)
        say(f"downloading packages for Python {python}" + (f" from {wheels}" if wheels else ""))
        download_packages(context / "wheels", python, wheels, gpu, extra_requirements, say)
        _agents_into(context)
        arguments = {"BASE_IMAGE": chosen, "VERSION": __version__, "AGENTS": agents_digest(), "WITH": " ".join(extras)}
        arguments["BUILDER"] = image_leftovers.builder()
        made = image_leftovers.replaced(name)
        try:
            _docker_build(context, name, arguments, say, made)
        finally:
            _sweep(made, say)
    say("testing the image")
    with translated(f"run {name}"):
        output = client().containers.run(
            name,
            ["python", "-c", "import torch, testbed_agents.fork_server; print(torch.__version__)"],
            remove=True,
            user=IMAGE_USER,
            network_mode="none",
        )
    size = client().images.get(name).attrs["Size"]
    say(f"{name}: torch {output.decode().strip()}, {size / 1e6:.0f} MB, built in {time.monotonic() - began:.0f} s")
    return name


def _sweep(made: set[str], say: Say) -> None:
    """Remove what a build left. If docker fails, this is said, and hides no other error."""
    try:
        image_leftovers.sweep(made, say)
    except HostError as error:
        say(f"what the build left could not be removed: {error}; the next build tries again")


def make_base(suite: str = "bookworm", *, say: Say = lambda line: None) -> str:
    """Create :data:`BASE` by debootstrap and ``docker import``; return its name. Needs root and Debian's packages.

    Raises MissingTool, HostError.
    """
    tool = shutil.which("debootstrap")
    if tool is None:
        raise MissingTool("debootstrap", installation.apt("debootstrap"), "the base is built from Debian's packages")
    if os.geteuid() != 0:
        raise HostError(f"debootstrap creates a root file system, which needs root; {invocation.again()}")
    client()  # fail before the minute that the rest takes
    name = f"{REPOSITORY}-base:{suite}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="testbed-base-") as folder:
        root = Path(folder) / "root"
        say(f"Debian {suite} with {', '.join(_DEBOOTSTRAP)} (one to two minutes)")
        # debootstrap mounts /proc and more below the new root. It runs in a mount namespace of its own: if it fails
        # with them still mounted, removing the folder cannot reach the host's files through them.
        apart = [runner.tool("unshare"), "--mount", "--propagation", "private", "--"]
        arguments = ["--variant=minbase", f"--include={','.join(_DEBOOTSTRAP)}", suite, str(root)]
        run_program([*apart, tool, *arguments], say, "I: Base system", name="debootstrap")
        for useless in (
            "var/cache/apt/archives",
            "var/lib/apt/lists",
            "usr/share/doc",
            "usr/share/man",
            "usr/share/locale",
        ):
            shutil.rmtree(root / useless, ignore_errors=True)
        say(f"importing it as {name}")
        archive = Path(folder) / "root.tar"
        import tarfile  # takes 0.01 s with its compressors, and `up` does not need it

        with tarfile.open(archive, mode="w") as tar:
            tar.add(root, arcname=".")
        repository, _, tag = name.partition(":")
        replaced = image_leftovers.replaced(name)
        with translated(f"import {name}"):
            client().api.import_image_from_file(str(archive), repository=repository, tag=tag)
        _sweep(replaced, say)
    say(f"{name}: built in {time.monotonic() - began:.0f} s; next: {build_command()}")
    return name


def _default_base() -> str:
    try:
        with translated("look for a base image"):
            client().images.get(BASE)
    except NotThere:
        return SLIM
    return BASE


def _python_of(image: str) -> str:
    """Return the Python version of an image, as in ``3.12``; a missing image is pulled."""
    command = ["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        with translated(f"run {image}"):
            output = client().containers.run(image, command, remove=True, network_mode="none")
    except HostError as error:
        base = invocation.command("image", "base", root=True)
        raise HostError(f"{error}; without access to a registry, build a base first: {base}") from error
    return str(output.decode().strip())


def download_packages(
    folder: Path, python: str, wheels: Path | None, gpu: bool, extra_requirements: Sequence[str], say: Say
) -> None:
    """Download torch, the agents' requirements and ``extra_requirements`` into ``folder``, for the image's Python.

    Writes ``requirements.txt`` beside them.
    """
    folder.mkdir()
    machine = os.uname().machine
    target = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", "--dest", str(folder)]
    target += [f"--platform={platform}_{machine}" for platform in _PLATFORMS]
    find_links = ["--find-links", str(wheels)] if wheels else []
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", *target, *find_links]
    # torch alone and first, from a source that has its CPU build: the default index has the one with CUDA.
    sources: list[list[str]] = [[]] if gpu else [["--no-index"]] if wheels else []
    if not gpu:
        sources += [["--index-url", TORCH_CPU_INDEX], []]
    failure = ""
    for source in sources:
        try:
            run_program([*pip, "--no-deps", *source, TORCH], say, "Saved ")
            if not gpu and not source:
                say("this torch is from the default index and includes CUDA (gigabytes); --wheels FOLDER avoids it")
            break
        except HostError as error:
            failure = str(error)
            place = wheels if "--no-index" in source else source[-1] if source else "the index"
            say(f"  no torch from {place}: {failure}")
    else:
        raise HostError(f"could not download torch for Python {python}: {failure}; provide it with --wheels FOLDER")
    torch = next(folder.glob("torch-*.whl"))
    # With the requirements of this wheel: a CUDA build cannot be imported without its libraries.
    run_program([*pip, *NEEDED, str(torch)], say, "Saved ")
    if extra_requirements:
        # Pin torch to the downloaded wheel, so that no dependency replaces it.
        chosen = folder / "constraints.txt"
        chosen.write_text(f"torch @ {torch.as_uri()}\n")
        run_program(
            [*pip, "--constraint", str(chosen), "--find-links", str(folder), *extra_requirements], say, "Saved "
        )
        chosen.unlink()
    (folder / "requirements.txt").write_text(
        "".join(f"{module}\n" for module in ("torch", *NEEDED, *extra_requirements))
    )


def _agents_package() -> Path:
    spec = importlib.util.find_spec("testbed_agents")
    if spec is None or not spec.submodule_search_locations:
        raise HostError("the package testbed_agents is not installed; reinstall scale-across-testbed")
    return Path(next(iter(spec.submodule_search_locations)))


def agents_digest() -> str:
    """Return a digest of the agents' sources and the Dockerfile, which may change while the version stays the same."""
    digest = hashlib.sha256()
    for path in (*sorted(_agents_package().rglob("*.py")), _dockerfile()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _agents_into(context: Path) -> None:
    """Copy the agents' package and the Dockerfile into a build context."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(_agents_package(), context / "testbed_agents", ignore=ignore)
    shutil.copy(_dockerfile(), context / "Dockerfile")


def _dockerfile() -> Path:
    """Return the Dockerfile of the repository or of the installed package."""
    candidates = (
        _agents_package().parent / "Dockerfile",
        Path(__file__).resolve().parents[2] / "shipped" / "Dockerfile",
    )
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise HostError("the agents' Dockerfile is missing from this installation; reinstall scale-across-testbed")


def _docker_build(context: Path, name: str, arguments: dict[str, str], say: Say, made: set[str]) -> None:
    """Build the image. ``made`` gets the ids of all images that docker makes for it, shortened as it prints them."""
    with translated("list images"):
        before = tuple(image.removeprefix("sha256:") for image in client().api.images(all=True, quiet=True))
    import tarfile

    with tempfile.TemporaryFile() as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(context, arcname=".")
        archive.seek(0)
        with translated(f"build {name}"):
            steps = client().api.build(
                fileobj=archive, custom_context=True, tag=name, buildargs=arguments, decode=True, rm=True, forcerm=True,
                timeout=_BOUND_S, network_mode="none" if arguments["BASE_IMAGE"] == BASE else None,
            )  # fmt: skip
            # Of the step's command, which has the reason; docker adds only the status.
            output_lines: list[str] = []
            try:
                for step in steps:
                    if "error" in step:
                        raise HostError(
                            f"could not build {name}: {'; '.join(output_lines[-3:]) or step['error'].strip()}"
                        )
                    for line in map(str.strip, step.get("stream", "").splitlines()):
                        if line.startswith("Step "):
                            say(line)
                            output_lines = []
                        elif match := _MADE.fullmatch(line):
                            made.update([match[1]] if not any(image.startswith(match[1]) for image in before) else [])
                        elif line and not line.startswith(("--->", "Removing intermediate container ")):
                            output_lines.append(line)
            finally:
                steps.close()  # after Ctrl-C docker would go on


def run_program(argv: Sequence[str], say: Say, telling: str, name: str = "") -> None:
    """Run a program and pass on the lines that begin with ``telling``. Raises HostError with its last lines.

    The program has ended when this returns or raises, Ctrl-C included: the caller removes its working folder next.
    """
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        assert child.stdout is not None
        lines: list[str] = []
        try:
            for line in child.stdout:
                lines = [*lines[-20:], line.strip()]
                if line.startswith(telling):
                    say("  " + line.strip().removeprefix(telling).rpartition("/")[2])
        except BaseException:
            child.terminate()
            try:
                child.wait(_END_BOUND_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            raise
        if child.wait() != 0:
            worst = [line for line in lines if "error" in line.lower()] or lines[-1:]
            raise HostError(f"{name or Path(argv[0]).name} failed: {'; '.join(worst[-3:])}")
