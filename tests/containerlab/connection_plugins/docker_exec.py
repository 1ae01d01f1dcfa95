"""Ansible connection by `docker exec`, for tests: ansible_host is the container, DOCKER_HOST names the daemon.

The collection that has such a connection is no part of ansible-core.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: docker_exec
short_description: runs tasks in a container by docker exec
description: For the tests of this repository.
options:
  remote_addr:
    description: Name of the container.
    default: inventory_hostname
    vars:
      - name: inventory_hostname
      - name: ansible_host
"""


class Connection(ConnectionBase):
    """One ``docker exec`` a command."""

    transport = "docker_exec"
    has_pipelining = True

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def _exec(self, words: list[str], data: bytes | None) -> tuple[int, bytes, bytes]:
        command = ["docker", "exec", "--interactive", str(self.get_option("remote_addr")), *words]
        done = subprocess.run(command, input=data or b"", capture_output=True)
        return done.returncode, done.stdout, done.stderr

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        return self._exec(["/bin/sh", "-c", cmd], in_data)

    def put_file(self, in_path: str, out_path: str) -> None:
        super().put_file(in_path, out_path)
        # By dd, not `docker cp`: that also writes where a running container's mounts are not seen.
        status, _, words = self._exec(["dd", f"of={out_path}", "status=none"], Path(in_path).read_bytes())
        if status != 0:
            raise AnsibleConnectionFailure(f"{out_path}: {words.decode()}")

    def fetch_file(self, in_path: str, out_path: str) -> None:
        super().fetch_file(in_path, out_path)
        status, data, words = self._exec(["cat", in_path], None)
        if status != 0:
            raise AnsibleConnectionFailure(f"{in_path}: {words.decode()}")
        Path(out_path).write_bytes(data)

    def close(self) -> None:
        self._connected = False
