"""A port of this host, forwarded to one that a command on another host listens on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from testbed.errors import HostError
from testbed.host.metrics.port_forward import CONNECT_BOUND_S, LOOPBACK, Forwarder
from testbed.host.remote import leashed_command, ssh_connection

if TYPE_CHECKING:
    import paramiko

__all__ = ["run"]


def run(
    where: str, argv: Sequence[str], environment: Mapping[str, str], port: int, ready: Callable[[str], None]
) -> int:
    """Run a command there that prints a URL of 127.0.0.1, and forward ``port`` to it; return the exit status.

    ``ready`` is called in another thread with the URL here. The port is open as long as the command runs. Raises
    UserError for a port that cannot be bound; as ssh_connection.connect and leashed_command.run; HostError if sshd
    there forwards no ports.
    """
    ports: list[int] = []
    failed: list[Exception] = []

    def connect() -> paramiko.Channel:
        import paramiko

        if not ports:
            raise HostError(f"{where}: nothing listens there yet")
        try:
            return transport.open_channel(
                "direct-tcpip", (LOOPBACK, ports[0]), (LOOPBACK, 0), timeout=int(CONNECT_BOUND_S)
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            fix = "let AllowTcpForwarding of sshd_config(5) be yes or local"
            raise HostError(f"{where}: sshd there forwards no port to {LOOPBACK}: {error}; {fix}") from error

    def listen() -> None:
        with os.fdopen(read, errors="replace") as stdout:
            line = stdout.readline().strip()
            try:
                if line:
                    ports.append(_port(where, line))
                    connect().close()
                    ready(forwarder.url)
            except Exception as error:
                failed.append(error)
                transport.close()  # which ends the command there, too
            while stdout.read(4096):
                pass

    with Forwarder(connect, port) as forwarder:
        transport = ssh_connection.connect(where)
        read, write = os.pipe()
        listener = threading.Thread(target=listen, daemon=True, name="forwarded port")
        listener.start()
        try:
            status = leashed_command.run(transport, where, leashed_command.Request(argv, environment, stdout=write))
        except HostError:
            if failed:
                raise failed[0] from None
            raise
        finally:
            transport.close()
            os.close(write)
            listener.join()
    return status


def _port(where: str, url: str) -> int:
    try:
        port = urlsplit(url).port
    except ValueError:
        port = None
    if not port:
        raise HostError(f"{where}: expected a URL with a port from the command there, got {url[:100]!r}")
    return port
