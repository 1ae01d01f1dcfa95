"""Read topology and experiment files: shipped ones by name, a user's by path; with a size limit, never blocking.

Only this module opens them; ``testbed.core`` parses them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import testbed
from testbed.core import yamltext
from testbed.core.topology import resolve
from testbed.core.topology.model import Topology
from testbed.core.user_text import shown, unknown
from testbed.errors import FileMistakes, Finding, UnknownName, UserError
from testbed.host.linux import congestion, invocation

if TYPE_CHECKING:
    from testbed.core.experiment.experiment_schema import Experiment

__all__ = [
    "Kind",
    "examine_experiment",
    "find",
    "kind_of",
    "list_experiments",
    "list_topologies",
    "load_experiment",
    "load_topology",
    "load_topology_of",
    "lost_here",
]

Kind = Literal["topology", "experiment"]

_FOLDERS: Final = {"topology": "topologies", "experiment": "experiments"}
_SUFFIXES: Final = (".yaml", ".yml")


def _folder(kind: Kind) -> Path:
    """Return the folder of the shipped files: inside an installed package, else in the repository beside it."""
    package = Path(testbed.__file__).resolve().parent
    shipped = package / "shipped" / _FOLDERS[kind]
    return shipped if shipped.is_dir() else package.parent / _FOLDERS[kind]


def _shipped(kind: Kind) -> dict[str, Path]:
    folder = _folder(kind)
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))} if folder.is_dir() else {}


def list_topologies() -> tuple[str, ...]:
    """Names of the shipped topologies, sorted."""
    return tuple(_shipped("topology"))


def list_experiments() -> tuple[str, ...]:
    """Names of the shipped experiments, sorted."""
    return tuple(_shipped("experiment"))


def find(name_or_path: str, kind: Kind = "topology") -> tuple[bytes, str]:
    """Return the content of a file and its label in messages.

    A name with a slash or ending in .yaml or .yml is a path, any other the name of a shipped file.

    Raises:
        UnknownName: there is no such file; the message suggests similar names.
        UserError: it cannot be read, is not a regular file or is larger than ``yamltext.MOST_BYTES``.
    """
    if _is_path(name_or_path):
        return _read(name_or_path, kind), name_or_path
    shipped = _shipped(kind)
    if name_or_path not in shipped:
        raise _unknown(kind, name_or_path, shipped)
    path = shipped[name_or_path]
    return _read(str(path), kind), _label(path)


def _is_path(name_or_path: str) -> bool:
    return "/" in name_or_path or name_or_path in (".", "..") or name_or_path.endswith(_SUFFIXES)


def _unknown(kind: str, name: str, shipped: Iterable[str]) -> UserError:
    if os.path.lexists(name.replace("\0", "")):
        return UserError(f"unknown shipped {kind} {shown(name)}; for the file of that name write ./{name}")
    return UnknownName(kind, name, shipped)


def _label(path: Path) -> str:
    """Return ``path`` relative to the working directory, if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _read(path: str, kind: Kind) -> bytes:
    try:
        # Checked before opening: opening alone can act (a tape rewinds) or block (a pipe, until someone writes).
        _check_regular(Path(path).stat(), path)
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(handle, "rb") as file:
            _check_regular(os.fstat(handle), path)
            text = file.read(yamltext.MOST_BYTES + 1)
        if text is None:  # it claims to be regular and would block, like /proc/kmsg
            raise UserError(f"{path} is not a regular file; save the text in one")
    except FileNotFoundError as error:
        if Path(path).is_symlink():
            raise UserError(f"{path} is a link to a missing file") from error
        raise UnknownName(f"{kind} file", path, _neighbours(path)) from error
    except PermissionError as error:
        raise UserError(f"no permission to read {path}; change its permissions, or copy it") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(f"cannot read {shown(path)}: {reason.lower()}") from error
    if len(text) > yamltext.MOST_BYTES:
        raise UserError(f"{path} is larger than {yamltext.MOST_BYTES >> 20} MiB; a {kind} has a few kilobytes")
    return text


def _check_regular(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"{path} is a directory; name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} is not a regular file; save the text in one")


def _neighbours(path: str) -> list[str]:
    """Return the YAML files beside ``path``, with the same folder in their names."""
    folder, slash, _ = path.rpartition("/")
    try:
        names = sorted(entry.name for entry in os.scandir(folder or slash or ".") if entry.name.endswith(_SUFFIXES))
    except OSError:
        return []
    return [f"{folder}{slash}{name}" for name in names[:200]]


def load_topology(name_or_path: str, overrides: Mapping[str, object] | None = None) -> Topology:
    """Load a topology by path or shipped name, with ``--set`` overrides applied; raises as ``resolve.load_text``."""
    text, label = find(name_or_path, "topology")
    return resolve.load_text(text, label, overrides)


def load_experiment(name_or_path: str) -> Experiment:
    """Load an experiment by path or shipped name; raises as ``experiment_schema.load_text``."""
    text, label = find(name_or_path, "experiment")
    from testbed.core.experiment import experiment_schema  # takes 0.1 s to import; `up` needs none
    from testbed.host import strategy_packages

    strategy_packages.register()
    return experiment_schema.load_text(text, label)


def load_topology_of(experiment: Experiment, overrides: Mapping[str, object] | None = None) -> Topology:
    """Load the topology that an experiment names, with its ``set`` and then ``overrides`` applied.

    Raises:
        UserError: it names none. FileMistakes: of the topology; mistakes in what the experiment names or sets have its
            lines. UnknownName: of ``overrides``.
    """
    if experiment.topology is None:
        raise UserError(f"{experiment.source} names no topology; add a line such as 'topology: metro-40km'")
    topology, findings = _topology_of(experiment, overrides or {})
    if topology is None or findings:
        raise FileMistakes(findings)
    return topology


def examine_experiment(
    name_or_path: str,
    overrides: Mapping[str, object] | None = None,
    steps: int | None = None,
    seed: int | None = None,
) -> tuple[Finding, ...]:
    """Return all mistakes of an experiment at once: its own, and what does not fit the topology that it names.

    ``overrides``, ``steps`` and ``seed`` as of a run of it. Raises UnknownName, UserError as :func:`find`; of
    ``overrides`` too.
    """
    from testbed.core.experiment import experiment_schema, fault_schedule
    from testbed.core.workload import workload_layout
    from testbed.core.workload.workload import AgentWorkload
    from testbed.host import strategy_packages

    strategy_packages.register()
    text, label = find(name_or_path, "experiment")
    try:
        experiment, findings = experiment_schema.examine(text, label)
    except FileMistakes as error:
        return error.findings
    if experiment.topology is not None:
        topology, topology_findings = _topology_of(experiment, overrides or {})
        findings += topology_findings
        if topology is not None:
            findings += lost_here(topology, label)
            findings += fault_schedule.examine(experiment, topology, steps, seed)[1]
            workload, lines = experiment.workload, experiment.workload_lines
            if isinstance(workload, AgentWorkload):
                findings += workload_layout.findings(workload, topology, label, lines, experiment.workload_bad)
    return FileMistakes(findings).findings


def lost_here(topology: Topology, label: str) -> tuple[Finding, ...]:
    """Return warnings of what this host lacks of a topology, which another host may have."""
    if lost := congestion.lacking(topology.congestion):
        fix = f"on this host, try: {invocation.as_root(f'modprobe tcp_{topology.congestion}')}"
        return (Finding(label, 0, lost, fix, warning=True),)
    return ()


def _topology_of(
    experiment: Experiment, overrides: Mapping[str, object]
) -> tuple[Topology | None, tuple[Finding, ...]]:
    """Return the topology that an experiment names, without those of its ``set`` that are mistakes, and all mistakes.

    Without a topology the file that describes it has mistakes, or there is none. Raises UnknownName, UserError for
    ``overrides``.
    """
    assert experiment.topology is not None
    name, own = experiment.topology, {key: setting for key, setting in experiment.set.items() if key not in overrides}
    try:
        text, label = find(name, "topology")
    except UserError as error:
        return None, (_at(experiment, experiment.topology_line, error),)
    findings: list[Finding] = []
    try:
        return resolve.load_text(text, label, {**own, **overrides}), ()
    except FileMistakes as error:
        findings += error.findings
    except UserError:
        if not own:
            raise
    # One by one, to find each mistake and what is right.
    right: dict[str, object] = {}
    for key, value in own.items():
        try:
            resolve.load_text(text, label, {key: value})
        except FileMistakes as error:
            mine = [finding for finding in error.findings if finding.file == f"--set {key}"]
            findings += mine
            if mine:
                continue
        except UserError as error:
            findings.append(_at(experiment, experiment.set_lines.get(key, 0), error))
            continue
        right[key] = value
    topology = None
    try:
        topology = resolve.load_text(text, label, {**right, **overrides})
    except FileMistakes as error:
        findings += error.findings
    lines = {f"--set {key}": line for key, line in experiment.set_lines.items() if key not in overrides}
    return topology, tuple(
        dict.fromkeys(
            replace(finding, file=experiment.source, line=lines[finding.file]) if finding.file in lines else finding
            for finding in findings
        )
    )


def _at(experiment: Experiment, line: int, error: UserError) -> Finding:
    """Return an error about a name in an experiment as a finding with its line."""
    if isinstance(error, UnknownName):
        return Finding(experiment.source, line, *unknown(error.what, error.name, error.available))
    message, _, fix = str(error).partition("; ")
    return Finding(experiment.source, line, message, fix)


def kind_of(name_or_path: str) -> Kind:
    """Return whether ``name_or_path`` is a topology or an experiment, by where it is shipped or by the file's keys.

    Raises:
        UnknownName, UserError: as :func:`find`.
    """
    if not _is_path(name_or_path):
        topologies, experiments = _shipped("topology"), _shipped("experiment")
        if name_or_path not in topologies and name_or_path not in experiments:
            raise _unknown("topology or experiment", name_or_path, (*topologies, *experiments))
        return "topology" if name_or_path in topologies else "experiment"
    text, label = find(name_or_path, "topology")
    try:
        data = yamltext.read(text, label).data
    except FileMistakes:
        return "topology"  # loading it will report the mistakes
    keys = set(data) if isinstance(data, dict) else set()
    return (
        "experiment"
        if keys & {"schedule", "expect", "workload", "hypothesis", "random"} and "sites" not in keys
        else "topology"
    )
