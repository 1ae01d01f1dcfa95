"""The handler of an observed lab: the keeper's exporter, and a Prometheus server that scrapes it and the agents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.core.plan.resources import Prometheus
from testbed.core.plan.step import Property, Step
from testbed.core.prometheus import scrape_config
from testbed.errors import LabError
from testbed.host.drivers.driver import Facts
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.host.metrics import prometheus_server as prometheus_host
from testbed.host.metrics.prometheus_server import PrometheusServer

if TYPE_CHECKING:
    from testbed.host.metrics.exposition import Exposition
    from testbed.keeper.exporter import Exporter

__all__ = ["PrometheusCleanup", "PrometheusHandler"]


class PrometheusHandler:
    """Starts and stops the server. ``path`` returns the handle of a namespace; ``exporter`` is called when needed.

    ``died`` is called, from a thread, with how the server ended if that was unexpected; the rest of the lab goes on.
    """

    def __init__(
        self,
        lab: LabFolder,
        path: Callable[[str], Path],
        exporter: Callable[[], Exporter],
        died: Callable[[str], None],
    ) -> None:
        self._lab, self._path, self._make_exporter, self._died = lab, path, exporter, died
        self._exporter: Exporter | None = None
        self._exposition: Exposition | None = None
        self._server: PrometheusServer | None = None
        self._stopping = False
        self.address = ""
        """``address:port`` in the management network while the server runs; otherwise empty."""
        self.ended = ""
        """How the server ended, for people, if that was unexpected."""

    def make(self, step: Step) -> Facts:
        assert isinstance(step, Prometheus)
        from testbed.host.metrics.exposition import Exposition  # only labs with a Prometheus need its web server

        prometheus_host.find()  # raises before anything is written
        lab, netns = self._lab, self._path(step.namespace)
        try:
            self._exporter = self._make_exporter()
            self._exposition = Exposition(netns, step.address, step.exporter_port, self._exporter.text)
            prometheus_host.prepare(
                lab.prometheus,
                {
                    scrape_config.CONFIG_FILE: scrape_config.configuration(lab.name),
                    scrape_config.RULES_FILE: prometheus_host.rules(),
                    scrape_config.TARGETS["agents"]: scrape_config.agents_targets(lab.name, step.ranks),
                    scrape_config.TARGETS["lab"]: scrape_config.lab_targets(
                        lab.name, f"{step.address}:{step.exporter_port}"
                    ),
                },
            )
            server = PrometheusServer(lab.prometheus, netns, step.address, step.port, lab.prometheus_log)
        except BaseException:
            self._close()
            raise
        self._server, self.address = server, f"{step.address}:{step.port}"
        threading.Thread(target=self._supervise, args=(server,), name="prometheus", daemon=True).start()
        return {"pid": server.pid, "began": server.began}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        self._stopping = True  # first: a server that ends from here on has not died
        if (server := self._server) is not None:
            server.stop()
        self._server, self.address = None, ""
        self._close()

    def assign(self, properties: Sequence[Property]) -> None:
        return None

    def _close(self) -> None:
        if self._exposition is not None:
            self._exposition.close()
        if self._exporter is not None:
            self._exporter.close()
        self._exposition = self._exporter = None

    def _supervise(self, server: PrometheusServer) -> None:
        how = server.wait()
        if not self._stopping:
            self.address, self.ended = "", how
            self._died(how)


class PrometheusCleanup:
    """Ends a server that a dead keeper may have left: the kernel ends it with its keeper, except while it starts."""

    def __init__(self, lab: LabFolder) -> None:
        self._lab = lab

    def make(self, step: Step) -> Facts:
        raise LabError("the keeper of this lab is gone; take the lab down and bring it up again")

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        if "pid" in facts:
            process.end(facts["pid"], facts["began"])
        prometheus_host.end_left_in(self._lab.prometheus)

    def assign(self, properties: Sequence[Property]) -> None:
        return None
