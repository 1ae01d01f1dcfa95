"""Metadata of a run directory: run.json, the topology and the certificate beside it."""

from __future__ import annotations

import contextlib
import json
import platform
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from testbed.core.certification.certificate import Certificate
from testbed.core.topology.model import Topology, topology_to_dict
from testbed.core.topology.survey import validity_of
from testbed.errors import LabError
from testbed.host import lab_nodes
from testbed.host.files.store import RunDirectory
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client
from testbed.version import __version__

RANK_SCHEDULING = "SCHED_OTHER, one thread each, no pinning"


def begin(
    run: RunDirectory,
    lab: LabFolder,
    topology: Topology,
    certificate: Certificate | None,
    *,
    experiment: Mapping[str, Any] | None = None,
    workload: Mapping[str, Any] | None = None,
) -> None:
    """Record what is known when a run begins. Raises StorageError."""
    emulator, scheduling = "none", ""
    with contextlib.suppress(LabError):
        hello = client.keeper(lab).hello()
        emulator, scheduling = hello["emulator"], hello["scheduling"]
    chosen: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        chosen = json.loads(lab.about.read_text())
    host = dict(certificate.host) if certificate else {}
    run.reserve()
    run.write_json("topology.json", topology_to_dict(topology))
    if certificate is not None:
        run.write_json("certificate.json", certificate.to_dict())
    run.write_json(
        "run.json",
        {
            "version": 1,
            "name": run.name,
            "lab": lab.name,
            "testbed": __version__,
            "status": "running",
            "reason": "",
            "unknown_because": "",
            "started_unix_s": time.time(),
            "started_t": time.monotonic(),
            "ended_t": None,
            "experiment": dict(experiment or {}),
            "expectations": [],
            "workload": dict(workload or {}),
            "validity": [finding.to_dict() for finding in validity_of(topology)],
            "driver": lab_nodes.driver(lab).name,
            "driver_why": chosen.get("driver_why", ""),
            "emulator": emulator,
            "emulator_why": chosen.get("emulator_why", ""),
            "scheduling": {"emulator": scheduling, "ranks": RANK_SCHEDULING},
            "uncertified": certificate is None or not certificate.certified,
            "noisy_host": certificate is not None and certificate.noisy,
            "captures": [],
            "noise": None,
            "host": {
                "kernel": platform.release(),
                "cpus": psutil.cpu_count() or 1,
                "cpu_model": cpu_model(),
                "congestion_control": host.get("congestion_control", ""),
                "sysctls": host.get("sysctls", {}),
            },
        },
    )


_amending = threading.Lock()
"""A job's attempts are recorded by another thread."""


def amend(run: RunDirectory, **changes: Any) -> None:
    """Change fields of run.json. Raises StorageError."""
    with _amending:
        run.write_reserved("run.json", {**run.read_json("run.json"), **changes})


def cpu_model() -> str:
    """Return the processor's model name, or the architecture if there is none (proc_cpuinfo(5))."""
    try:
        with Path("/proc/cpuinfo").open() as stream:
            for line in stream:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
