"""Collect what a run needs of this machine, and render the run as a Kubernetes Job (``core/plan/kubernetes.py``)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from testbed.core.experiment.named_files import named_files
from testbed.core.plan import kubernetes
from testbed.core.plan.kubernetes import CarriedFile
from testbed.core.user_text import shown
from testbed.errors import FileMistakes, StorageError, UserError
from testbed.host.drivers import images
from testbed.host.files import catalog
from testbed.version import __version__

__all__ = ["DEFAULT_CLAIM", "render"]

DEFAULT_CLAIM = "testbed-runs"


def render(
    what: str,
    arguments: Sequence[str],
    named: Sequence[Path],
    *,
    overrides: Mapping[str, object],
    name: str = "",
    image: str = "",
    claim: str = DEFAULT_CLAIM,
) -> str:
    """Return the ConfigMap and the Job of ``testbed run WHAT``, as YAML.

    Args:
        what: topology or experiment, shipped or a file.
        arguments: of ``testbed``, from ``run`` on.
        named: files of this machine that these arguments name; those that an experiment names are added.
        overrides: of the topology, as the arguments have them.
        name: of the Job; default: derived from ``what``, the arguments and the files.
        image: default: :func:`testbed.host.drivers.images.reference` with ``-run``.
        claim: PersistentVolumeClaim for the results.

    Raises UserError, FileMistakes for what ``testbed run`` would refuse to begin with, and for files that a ConfigMap
    cannot hold; StorageError.
    """
    images.refuse_bad_name(image)
    ranks, experiment_files = _read(what, overrides)
    files = [*_carried(dict.fromkeys(_inside(str(path)) for path in (*named, *experiment_files)))]
    return kubernetes.render(
        kubernetes.Request(
            name=name or kubernetes.default_name(Path(what).stem, arguments, files),
            arguments=arguments,
            files=files,
            image=image or f"{images.reference()}-run",
            claim=claim,
            ranks=ranks,
            version=__version__,
        )
    )


def _read(what: str, overrides: Mapping[str, object]) -> tuple[int, list[str]]:
    """Return how many ranks a run has, and the paths of files that its experiment names."""
    if catalog.kind_of(what) == "topology":
        return len(catalog.load_topology(what, overrides).node_names), []
    if findings := catalog.examine_experiment(what, overrides):
        raise FileMistakes(findings)
    experiment = catalog.load_experiment(what)
    topology = catalog.load_topology_of(experiment, overrides)
    assert experiment.topology is not None
    paths = [*named_files(experiment)]
    ranks = len(topology.node_names) * experiment.workload.ranks_per_node
    if (program := experiment.workload.program) is not None and Path(what).is_file():
        # Words of a program's command are seen from its folder.
        folder = Path(what).parent / program.program_folder
        paths += [str(folder / word) for word in program.command if (folder / word).is_file()]
    return ranks, paths


def _inside(path: str) -> str:
    """Return a path below the current folder, without ``..``. Raises UserError for any other."""
    plain = os.path.normpath(path)
    if plain.startswith("/") or plain.split("/")[0] == ".." or any(part.startswith("..") for part in plain.split("/")):
        raise UserError(
            f"expected files below the current folder, where the pod has them, got {shown(path)};"
            " change to a folder above all files of the run, or put the file into an image (--image)"
        )
    return plain


def _carried(paths: Mapping[str, None]) -> Iterator[CarriedFile]:
    left = kubernetes.MOST_BYTES
    for path in paths:
        try:
            with Path(path).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > left:
                    raise kubernetes.too_large(path, size)
                content = file.read(left + 1)
                executable = bool(os.fstat(file.fileno()).st_mode & 0o111)
        except OSError as error:
            raise StorageError(f"cannot read {shown(path)}: {error.strerror}") from error
        left -= len(content)
        yield CarriedFile(path, content, executable)
