#!/usr/bin/env python3
"""Generate grafana/testbed.json, the Grafana dashboard of observed labs; docs/observability.md describes its use.

Uses Grafana's Foundation SDK (https://github.com/grafana/grafana-foundation-sdk, the extra ``dashboard``) for Grafana
11.6; later releases migrate a dashboard when they load it. docs/observability.md explains each series.
tests/unit/repository/test_dashboard.py checks that the file in the repository is up to date, that each expression
parses, and that each series exists.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model
from grafana_panels import SOURCE, UP, WINDOW, WITHIN, Regions, curves, figure, now, states

LAB: Final = 'lab="$lab"'
SITE: Final = 'lab="$lab", site=~"$site"'
DIRECTION: Final = "{{link}} from {{site}}"
RANK: Final = "{{rank}} ({{node}})"


def overview() -> list[Any]:
    return [
        figure(
            "Tokens per second",
            "short",
            f"lab:testbed_tokens:rate15s{{{LAB}}}",
            "Tokens (bytes of text) processed by all ranks, mean over 15 s.",
        ),
        figure(
            "Compute utilization",
            "percentunit",
            f"sum(rate(testbed_compute_seconds_total{{{LAB}}}[{WINDOW}]))"
            f" / (sum(rate(testbed_step_seconds_sum{{{LAB}}}[{WINDOW}])) > 0)",
            "Share of step time spent computing; the rest is exposed communication: waiting for peers or the network.",
        ),
        figure(
            "Ranks up",
            "percentunit",
            f"avg(testbed_rank_up{{{LAB}}})",
            "Share of ranks whose process is alive, as observed by the keeper.",
            steps=((None, "red"), (1, "green")),
        ),
        figure(
            "Links up",
            "percentunit",
            f"avg(min by (link) (testbed_link_up{{{LAB}}}))",
            "Share of links with a carrier at both gateways.",
            steps=((None, "red"), (1, "green")),
        ),
        figure(
            "Certificate",
            "short",
            f"testbed_certified{{{LAB}}}",
            "Whether the last certification found all fibers within tolerance. A dash: not certified yet.",
            texts=WITHIN,
        ),
        figure(
            "Alerts firing",
            "short",
            f'count(ALERTS{{{LAB}, alertstate="firing"}}) or vector(0)',
            "Alerts of this lab that are firing; the row 'Links and faults' lists them.",
            steps=((None, "green"), (1, "red")),
        ),
    ]


def training() -> list[Any]:
    share = "lab_site_part:testbed_exposed_communication_per_step_seconds:ratio_rate15s"
    return [
        curves(
            "Train loss",
            "short",
            [(f"max by (site) (testbed_train_loss{{{SITE}}})", "{{site}}")],
            "Mean over ranks, in nats per byte of text. All ranks report the same value, so the sites' lines coincide.",
        ),
        curves(
            "Step time",
            "s",
            [
                (f"lab:testbed_step_seconds:p50_1m{{{LAB}}}", "median"),
                (f"lab:testbed_step_seconds:p99_1m{{{LAB}}}", "99th percentile"),
            ],
            "Quantiles over the last minute, interpolated linearly within the buckets of a histogram.",
        ),
        curves(
            "Tokens per second",
            "short",
            [(f"lab_site:testbed_tokens:rate15s{{{SITE}}}", "{{site}}")],
            "Tokens processed by the ranks of each site, mean over 15 s.",
        ),
        curves(
            "Where the time of a step goes",
            "percentunit",
            [
                (f"avg(lab_site:testbed_compute_per_step_seconds:ratio_rate15s{{{SITE}}})", "compute"),
                (f"avg by (part) ({share}{{{SITE}}})", "exposed: {{part}}"),
            ],
            "Compute utilization and exposed communication, mean of the selected sites. peer_wait: the rank is ready,"
            " another is not; network: all ranks are ready and gradients are in transit.",
            share=True,
        ),
        curves(
            "Exposed communication by site",
            "percentunit",
            [(f"{share}{{{SITE}}}", "{{site}} {{part}}")],
            "Share of the step after the last gradient was ready. The site with more peer_wait computes faster.",
        ),
        curves(
            "All-reduce, mean",
            "s",
            [
                (
                    f"sum by (site) (rate(testbed_collective_seconds_sum{{{SITE}}}[{WINDOW}]))"
                    f" / (sum by (site) (rate(testbed_collective_seconds_count{{{SITE}}}[{WINDOW}])) > 0)",
                    "{{site}}",
                )
            ],
            "Duration of a collective on a rank, including the wait for peers, whether hidden by compute or exposed.",
        ),
    ]


def fibers() -> list[Any]:
    impaired = {"corrupted": "corrupted", "duplicated": "duplicated", "held_back": "reordered"}
    return [
        curves(
            "Throughput against rate",
            "bps",
            [
                (f"lab_link_site:testbed_fiber_bits:rate15s{{{SITE}}}", DIRECTION),
                (f"testbed_fiber_rate_bits_per_second{{{SITE}}}", f"rate of {DIRECTION}"),
            ],
            "L2 bits per second delivered in each direction, and its line rate without faults, both as in the lab: at"
            " full scale they are higher by the topology's scale.",
        ),
        curves(
            "Share of the rate",
            "percentunit",
            [(f"lab_link_site:testbed_fiber_bits_per_rate:ratio_rate15s{{{SITE}}}", DIRECTION)],
            "Throughput divided by line rate. Full frames of 1514 bytes reach 98.4 %: the rate includes preamble, FCS"
            " and inter-packet gap.",
        ),
        curves(
            "Queue",
            "bytes",
            [(f"testbed_fiber_queue_bytes{{{SITE}}}", DIRECTION)],
            "Bytes in the queue at each scrape. A queue is a property of the network, not an error of the emulator.",
        ),
        curves(
            "Drops by cause",
            "pps",
            [
                (
                    f"sum by (link, site, cause) (rate(testbed_fiber_dropped_packets_total{{{SITE}}}[{WINDOW}])) > 0",
                    f"{DIRECTION}: {{{{cause}}}}",
                )
            ],
            "Segments lost per second, by cause. memory, transmit and receive are failures of the emulator; the others"
            " are configured.",
        ),
        curves(
            "Share of packets lost",
            "percentunit",
            [(f"lab_link_site:testbed_fiber_dropped_per_offered_packets:ratio_rate15s{{{SITE}}}", DIRECTION)],
            "Segments dropped, for any cause, divided by segments offered to the direction.",
        ),
        curves(
            "Corrupted, duplicated, reordered",
            "pps",
            [
                (f"rate(testbed_fiber_{it}_packets_total{{{SITE}}}[{WINDOW}])", f"{DIRECTION}: {word}")
                for it, word in impaired.items()
            ],
            "Segments delivered with a flipped bit, delivered twice, or delayed until later ones overtook. Not counted"
            " on netem.",
        ),
    ]


def links() -> list[Any]:
    return [
        states(
            "Carriers",
            [(f"testbed_link_up{{{SITE}}}", "{{link}} at {{site}}")],
            "Whether the site's gateway has a carrier. A cut takes both ends down.",
            texts=UP,
        ),
        states(
            "Faults in force",
            [(f"testbed_fault_active{{{LAB}}}", "{{type}} {{target}}")],
            "Each active fault, from injection until it ends for any reason; also shown as annotations in all panels.",
            texts={"1": ("in force", "orange")},
        ),
        states(
            "Alerts",
            [
                (
                    f'max by (alertname, link, site, node) (ALERTS{{{LAB}, alertstate="firing"}})',
                    "{{alertname}} {{link}} {{site}} {{node}}",
                )
            ],
            "Firing alerts. The alert's description in Prometheus and docs/observability.md say what to do.",
            texts={"1": ("firing", "red")},
        ),
        curves(
            "Carrier changes",
            "short",
            [(f"sum by (link) (testbed_link_carrier_changes_total{{{SITE}}})", "{{link}}")],
            "Carriers lost and regained since the lab came up, both gateways together: a cut and its heal count four.",
            width=6,
        ),
        curves(
            "Faults injected",
            "short",
            [(f"testbed_faults_total{{{LAB}}}", "{{type}}")],
            "Faults injected since the lab came up, by type, including ended ones.",
            width=6,
        ),
    ]


def fidelity() -> list[Any]:
    by = "max by (link, site)"
    return [
        now(
            "Certificate",
            {
                "delay": (f"{by} (testbed_fiber_delay_seconds{{{SITE}}})", "s"),
                "median error": (f"{by} (testbed_certificate_delay_error_seconds{{{SITE}}})", "s"),
                "tolerance": (f"{by} (testbed_certificate_tolerance_seconds{{{SITE}}})", "s"),
                "verdict": (f"{by} (testbed_certificate_within_tolerance{{{SITE}}})", "short"),
            },
            "The last certificate of the direction that leaves the site: one-way delay without faults, measured error"
            " (median delay minus target, and minus the baseline where it is not calibrated), and tolerance. The"
            " verdict covers all measured quantities.",
            texts={"verdict": WITHIN},
            width=16,
        ),
        figure(
            "Age of the certificate",
            "s",
            f"time() - max(testbed_certificate_timestamp_seconds{{{LAB}}})",
            "Time since the fibers were measured. `testbed certify` measures them again.",
            width=8,
            height=8,
        ),
        curves(
            "Lateness, 99th percentile",
            "s",
            [(f"lab_link_site:testbed_fiber_lateness_seconds:p99_30s{{{SITE}}}", DIRECTION)],
            "Delay of packets beyond their due time: the emulator's own error under the present load. Above 1 ms the"
            " report's fidelity verdict is 'did not hold'. fiberd only: netem does not time packets.",
            limit=1e-3,
            width=12,
        ),
        curves(
            "Lateness, median",
            "s",
            [(f"lab_link_site:testbed_fiber_lateness_seconds:p50_30s{{{SITE}}}", DIRECTION)],
            "Delay of packets beyond their due time. The report allows 50 us.",
            limit=50e-6,
            width=12,
        ),
    ]


def ranks() -> list[Any]:
    sent = f'job="agents", interface="fabric0", {SITE}'
    return [
        states(
            "Ranks",
            [(f'min by (node, rank) (testbed_rank_up{{{SITE}}} or up{{job="agents", {SITE}}})', RANK)],
            "up: the process is alive and answers the scrape. A paused rank is alive but does not answer.",
            texts=UP,
        ),
        states(
            "Training",
            [(f'max by (node, rank) (testbed_job_info{{state="training", {SITE}}})', RANK)],
            "Periods in which a rank is part of a training job.",
            texts={"1": ("training", "blue")},
        ),
        curves(
            "Straggler ratio",
            "short",
            [(f"lab_rank:testbed_straggler:ratio_rate30s{{{SITE}}}", RANK)],
            "Compute per step of a rank divided by the mean of the others. Above 1.25 the rank is a straggler if others"
            " wait for it.",
            limit=1.25,
        ),
        curves(
            "Compute per step",
            "s",
            [(f"lab_rank:testbed_compute_seconds_per_step:ratio_rate30s{{{SITE}}}", RANK)],
            "Compute time of forward, backward and optimizer, mean over 30 s.",
        ),
        curves(
            "Sent by nodes",
            "bps",
            [(f"8 * rate(testbed_transmit_bytes_total{{{sent}}}[{WINDOW}])", "{{node}}")],
            "Traffic sent by each node into its site's fabric, to destinations within and outside the site.",
        ),
    ]


def orchestrator() -> list[Any]:
    return [
        curves(
            "CPU of the orchestrator",
            "percentunit",
            [
                (f"rate(testbed_emulator_cpu_seconds_total{{{LAB}}}[{WINDOW}])", "emulator"),
                (f"rate(testbed_keeper_cpu_seconds_total{{{LAB}}}[{WINDOW}])", "keeper"),
            ],
            "CPU time of the emulator and the keeper, as a share of one core. netem runs in the kernel and is not"
            " counted.",
            width=12,
        ),
        now(
            "Emulator",
            {"running": (f"max by (emulator, scheduling, version) (testbed_emulator_info{{{LAB}}})", "short")},
            "Emulator of the fibers, and its scheduling policy.",
        ),
    ]


def build() -> model.Dashboard:
    """Return the dashboard. Panel numbers follow panel order, so links to panels stay valid while the order does."""
    lab = dashboard.QueryVariable("lab").label("Lab").datasource(SOURCE).query("label_values(testbed_emulator_up, lab)")
    site = (
        dashboard.QueryVariable("site").label("Site").datasource(SOURCE).multi(True).include_all(True).all_value(".*")
    )
    site.query('label_values(testbed_link_up{lab="$lab"}, site)')
    site.current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    for variable in (lab, site):
        variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)
        variable.allow_custom_value(False)
    built = (
        dashboard.Dashboard("Scale-across training testbed")
        .uid("scale-across-testbed")
        .description("Training across sites, the fibers between them, and the fidelity of their emulation.")
        .tags(["testbed"])
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-15m", "now")
        .refresh("5s")
        .timezone("browser")
        .readonly()
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(lab)
        .with_variable(site)
        .annotation(Regions("Faults", f"testbed_fault_active{{{LAB}}} > 0", "{{type}} {{target}}"))
    )
    rows = {
        "Overview": overview,
        "Training": training,
        "Fibers": fibers,
        "Links and faults": links,
        "Fidelity": fidelity,
        "Ranks": ranks,
        "Orchestrator": orchestrator,
    }
    number = 0
    for title, panels in rows.items():
        number += 1
        built.with_row(dashboard.Row(title).id(number))
        for panel in panels():
            number += 1
            built.with_panel(panel.id(number))
    return built.build()


def main() -> int:
    json.dump(build(), sys.stdout, cls=JSONEncoder, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
