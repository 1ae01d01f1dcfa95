"""A pod of a rendered Job, as one container of docker: what the kubelet and a container runtime would make of it.

A field that is not known here fails, so that the container has exactly what the Job says. A claim is a folder; a
ConfigMap has the layout of the kubelet's volumes (its AtomicWriter): symbolic links by ``..data`` to another folder.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

POD = {
    "restartPolicy", "terminationGracePeriodSeconds", "automountServiceAccountToken", "enableServiceLinks", "affinity",
    "containers", "volumes",
}  # fmt: skip
CONTAINER = {"name", "image", "command", "args", "env", "workingDir", "resources", "securityContext", "volumeMounts"}


def argv(job: Mapping[str, Any], name: str, claim: Path, config: Path | None = None) -> list[str]:
    """Return the arguments of ``docker run`` for the pod of a Job, without network beside its loopback.

    Args:
        job: as rendered.
        name: of the container.
        claim: folder in place of the PersistentVolumeClaim.
        config: folder of the ConfigMap, by :func:`config_volume`.
    """
    pod = job["spec"]["template"]["spec"]
    assert pod.keys() <= POD
    (container,) = pod["containers"]
    assert container.keys() <= CONTAINER
    words = ["--name", name, "--network", "none", "--stop-timeout", str(pod["terminationGracePeriodSeconds"])]
    words += _rights(container["securityContext"])
    for each in container["env"]:
        words += ["--env", f"{each['name']}={each['value']}"]
    if "workingDir" in container:
        words += ["--workdir", container["workingDir"]]
    sources = {it["name"]: claim if "persistentVolumeClaim" in it else config for it in pod["volumes"]}
    for mount in container["volumeMounts"]:
        options = ":ro" if mount.get("readOnly") else ""
        words += ["--volume", f"{sources[mount['name']]}:{mount['mountPath']}{options}"]
    entry, *rest = container["command"]
    # No variable is defined that could be expanded; $$ is $.
    arguments = [re.sub(r"\$\$", "$", it) for it in (*rest, *container["args"])]
    return [*words, "--entrypoint", entry, container["image"], *arguments]


def _rights(context: Mapping[str, Any]) -> list[str]:
    given = dict(context)
    assert given.pop("privileged") is False
    assert given.pop("seccompProfile") == {"type": "RuntimeDefault"}, "docker's own, without an option"
    assert given.pop("appArmorProfile") == {"type": "Unconfined"}
    words = ["--user", str(given.pop("runAsUser")), "--security-opt", "apparmor=unconfined"]
    capabilities = given.pop("capabilities")
    assert not given, "a field that is not understood here"
    words += [word for it in capabilities["drop"] for word in ("--cap-drop", it)]
    return words + [word for it in capabilities["add"] for word in ("--cap-add", it)]


def config_volume(job: Mapping[str, Any], config_map: Mapping[str, Any], folder: Path) -> Path:
    """Write a ConfigMap into ``folder`` as the kubelet does, and return it."""
    held = {key: text.encode() for key, text in config_map.get("data", {}).items()}
    held |= {key: base64.b64decode(text) for key, text in config_map.get("binaryData", {}).items()}
    volume = next(it["configMap"] for it in job["spec"]["template"]["spec"]["volumes"] if "configMap" in it)
    assert volume["name"] == config_map["metadata"]["name"]
    current = folder / "..2026_01_01_00_00_00.1234567890"
    for item in volume["items"]:
        path = current / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(held[item["key"]])
        path.chmod(item.get("mode", 0o644))
    (folder / "..data").symlink_to(current.name)
    for top in {it["path"].split("/")[0] for it in volume["items"]}:
        (folder / top).symlink_to(f"..data/{top}")
    return folder
