"""The kernel's tables of interfaces and of TCP's retransmission timeouts."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.processes import open_files

from testbed.errors import HostError
from testbed.host.linux import interfaces
from testbed.host.linux.interfaces import InterfaceCounters, Traffic, traffic

TABLE = """\
Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:    4300      43    0    0    0     0          0         0     4300      43    0    0    0     0       0     0
north-a: 11  12    13   14    15    16         17        18        21      22   23   24   25    26      27         28
mgmt0:18446744073709551615 2 0 0 0 0 0 0 9 1 0 0 0 0 0 0
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "dev"
    path.write_text(TABLE)
    monkeypatch.setattr(interfaces, "_COUNTERS", str(path))
    return path


def test_each_column_is_the_one_that_is_meant(table: Path) -> None:
    found = traffic()
    assert found["north-a"] == Traffic(sent_bytes=21, received_bytes=11, sent_packets=22, received_drops=14)
    assert found["mgmt0"].received_bytes == 2**64 - 1
    assert sorted(found) == ["mgmt0", "north-a"], "the loopback is nobody's fiber"


def test_what_is_kept_open_is_read_anew(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces.namespace, "inside", lambda path, do: do())
    before = len(open_files())
    counters = InterfaceCounters(Path("/proc/self/ns/net"))
    assert counters.read() == traffic()
    table.write_text(TABLE.replace(" 21 ", " 99 "))
    assert counters.read()["north-a"].sent_bytes == 99
    counters.close()
    counters.close()
    assert len(open_files()) <= before


def test_the_column_is_read_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "netstat"
    monkeypatch.setattr(interfaces, "_TCP", file)
    file.write_text("TcpExt: SyncookiesSent TCPTimeouts TCPSpuriousRTOs\nTcpExt: 4 17 2\nIpExt: InNoRoutes\nIpExt: 0\n")
    assert interfaces.tcp_timeouts() == 17
    file.write_text("IpExt: InNoRoutes\nIpExt: 0\n")
    with pytest.raises(HostError, match="TcpExt"):
        interfaces.tcp_timeouts()


def test_this_kernel_counts_them() -> None:
    assert interfaces.tcp_timeouts() >= 0
