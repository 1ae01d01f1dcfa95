"""Scrape metrics in Prometheus text format over HTTP."""

from __future__ import annotations

import http.client

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "testbed_"


def scrape(address: str, port: int, timeout_s: float) -> dict[str, float] | None:
    """Return the ``testbed_`` samples of ``/metrics``, ``name{label="value"}`` to value; None without a timely answer.

    Connects from the network namespace of the calling thread.
    """
    connection = http.client.HTTPConnection(address, port, timeout=timeout_s)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        if answer.status != 200:
            return None
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    try:
        return {
            _series(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith(PREFIX)
        }
    except ValueError:
        return None


def _series(name: str, labels: dict[str, str]) -> str:
    if not labels:
        return name
    inner = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{inner}}}"
