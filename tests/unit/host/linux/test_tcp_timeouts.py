"""TCP's retransmission timeouts, as the kernel prints them."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import HostError
from testbed.host.linux import interfaces


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
