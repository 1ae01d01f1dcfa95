"""Generate the configuration of an observed lab's Prometheus and its scrape targets.

https://prometheus.io/docs/prometheus/latest/configuration/configuration/
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from testbed.core.plan.resources import Rank

__all__ = ["CONFIG_FILE", "RULES_FILE", "TARGETS", "agents_targets", "arguments", "configuration", "lab_targets"]

CONFIG_FILE: Final = "prometheus.yml"
RULES_FILE: Final = "rules.yml"
DATA_FOLDER: Final = "data"
TARGETS: Final = {"agents": "targets/agents.json", "lab": "targets/lab.json"}
"""Target file of each job, relative to the configuration (file_sd)."""

SCRAPE_INTERVAL_S: Final = 1.0
SCRAPE_TIMEOUT_S: Final = 0.9
RETENTION: Final = "512MB"
"""Days of samples of a large lab, bounded so that a forgotten lab does not fill the disk."""


def configuration(lab: str) -> str:
    """Return the text of ``prometheus.yml``; file names are relative to it."""
    jobs = "".join(_job(job, file) for job, file in TARGETS.items())
    return (
        f"# Prometheus of lab {lab}: written by `testbed up --observe`, removed by `testbed down`.\n"
        "global:\n"
        f"  scrape_interval: {SCRAPE_INTERVAL_S:g}s\n"
        f"  scrape_timeout: {SCRAPE_TIMEOUT_S * 1000:g}ms\n"
        f"  evaluation_interval: 2s\n"
        "  external_labels:\n"
        f"    lab: {json.dumps(lab)}\n"
        "rule_files:\n"
        f"  - {RULES_FILE}\n"
        "scrape_configs:\n" + jobs
    )


def _job(job: str, file: str) -> str:
    return (
        f"  - job_name: {job}\n"
        # Agents export their own site, node and rank, and the exporter the site of a direction: keep these labels.
        "    honor_labels: true\n"
        "    file_sd_configs:\n"
        f"      - files: [{file}]\n"
    )


def agents_targets(lab: str, ranks: Iterable[Rank]) -> str:
    """Return the JSON of ``targets/agents.json``: one group per rank, so that ``up`` has the labels of the rank."""
    groups = [
        {
            "targets": [f"{rank.metrics}:{rank.port}"],
            "labels": {"lab": lab, "site": rank.site, "node": rank.node, "rank": str(rank.rank)},
        }
        for rank in ranks
    ]
    return json.dumps(groups, indent=1) + "\n"


def lab_targets(lab: str, exporter: str) -> str:
    """Return the JSON of ``targets/lab.json``; ``exporter`` is ``address:port``."""
    return json.dumps([{"targets": [exporter], "labels": {"lab": lab}}], indent=1) + "\n"


def arguments(listen: str) -> Sequence[str]:
    """Return the arguments of ``prometheus``, run in its configuration folder; ``listen`` is ``address:port``."""
    return (
        f"--config.file={CONFIG_FILE}",
        f"--storage.tsdb.path={DATA_FOLDER}",
        f"--storage.tsdb.retention.size={RETENTION}",
        f"--web.listen-address={listen}",
        "--log.level=warn",
    )
