#!/usr/bin/env python3
"""Makes grafana/testbed.json, the Grafana dashboard of observed labs; how is in docs/observability.md.

By Grafana's Foundation SDK (https://github.com/grafana/grafana-foundation-sdk, the extra ``dashboard``), for Grafana
11.6; later ones migrate a dashboard when they load it. What each series is: docs/observability.md. That the file in the
repository is what this makes, that each expression parses and that each series exists:
tests/unit/repository/test_dashboard.py.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model
from grafana_panels import SOURCE, UP, WITHIN, Regions, curves, figure, now, states

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
            "Tokens (bytes of text) that all ranks trained on, mean over 15 s.",
        ),
        figure(
            "Compute utilization",
            "percentunit",
            f"sum(rate(testbed_compute_seconds_total{{{LAB}}}[15s]))"
            f" / (sum(rate(testbed_step_seconds_sum{{{LAB}}}[15s])) > 0)",
            "Of the time in steps, the share that computes; the rest waits for peers or for the network.",
        ),
        figure(
            "Ranks up",
            "percentunit",
            f"avg(testbed_rank_up{{{LAB}}})",
            "Share of the ranks whose process lives, as the keeper sees it.",
            steps=((None, "red"), (1, "green")),
        ),
        figure(
            "Links lit",
            "percentunit",
            f"avg(min by (link) (testbed_link_up{{{LAB}}}))",
            "Share of the links of which both gateways see a carrier.",
            steps=((None, "red"), (1, "green")),
        ),
        figure(
            "Certificate",
            "short",
            f"testbed_certified{{{LAB}}}",
            "Whether the last certification found every fiber within its tolerance. A dash: not certified yet.",
            texts=WITHIN,
        ),
        figure(
            "Alerts firing",
            "short",
            f'count(ALERTS{{{LAB}, alertstate="firing"}}) or vector(0)',
            "Alerts of this lab that fire now; the row 'Links and faults' names them.",
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
            "Mean over ranks, in nats per byte of text; all ranks say the same: the lines of the sites coincide.",
        ),
        curves(
            "Step time",
            "s",
            [
                (f"lab:testbed_step_seconds:p50_1m{{{LAB}}}", "median"),
                (f"lab:testbed_step_seconds:p99_1m{{{LAB}}}", "99th percentile"),
            ],
            "Of the steps of the last minute, by the buckets of a histogram: between two bounds it is a straight line.",
        ),
        curves(
            "Tokens per second",
            "short",
            [(f"lab_site:testbed_tokens:rate15s{{{SITE}}}", "{{site}}")],
            "By the site of the ranks, mean over 15 s.",
        ),
        curves(
            "Where the time of a step goes",
            "percentunit",
            [
                (f"avg(lab_site:testbed_compute_per_step_seconds:ratio_rate15s{{{SITE}}})", "compute"),
                (f"avg by (part) ({share}{{{SITE}}})", "exposed: {{part}}"),
            ],
            "Compute utilization and exposed communication, mean of the sites shown. peer_wait: a rank is ready and"
            " another is not; network: all are ready and the gradients are on their way.",
            share=True,
        ),
        curves(
            "Exposed communication by site",
            "percentunit",
            [(f"{share}{{{SITE}}}", "{{site}} {{part}}")],
            "Share of the step after the last gradient was ready. The site that waits more for peers is faster.",
        ),
        curves(
            "All-reduce, mean",
            "s",
            [
                (
                    f"sum by (site) (rate(testbed_collective_seconds_sum{{{SITE}}}[15s]))"
                    f" / (sum by (site) (rate(testbed_collective_seconds_count{{{SITE}}}[15s])) > 0)",
                    "{{site}}",
                )
            ],
            "One collective from its start on a rank to its end: waiting for peers included, hidden or exposed.",
        ),
    ]


def fibers() -> list[Any]:
    impaired = ("corrupted", "duplicated", "held_back")
    return [
        curves(
            "Throughput against rate",
            "bps",
            [
                (f"lab_link_site:testbed_fiber_bits:rate15s{{{SITE}}}", DIRECTION),
                (f"testbed_fiber_rate_bits_per_second{{{SITE}}}", f"rate of {DIRECTION}"),
            ],
            "Delivered L2 bits per second of each direction, and the rate that the topology gives it.",
        ),
        curves(
            "Share of the rate",
            "percentunit",
            [(f"lab_link_site:testbed_fiber_bits_per_rate:ratio_rate15s{{{SITE}}}", DIRECTION)],
            "Throughput over rate. Full frames of 1514 bytes reach 98.4 %: the rate also counts preamble, FCS and gap.",
        ),
        curves(
            "Queue",
            "bytes",
            [(f"testbed_fiber_queue_bytes{{{SITE}}}", DIRECTION)],
            "Bytes that wait for their turn at the rate, as they were at the scrape. A queue is the network's doing.",
        ),
        curves(
            "Drops by cause",
            "pps",
            [
                (
                    f"sum by (link, site, cause) (rate(testbed_fiber_dropped_packets_total{{{SITE}}}[15s])) > 0",
                    f"{DIRECTION}: {{{{cause}}}}",
                )
            ],
            "Packets lost per second. memory, transmit and receive are failures of the emulator; the others are what"
            " the fiber was asked to do.",
        ),
        curves(
            "Share of packets lost",
            "percentunit",
            [(f"lab_link_site:testbed_fiber_dropped_per_offered_packets:ratio_rate15s{{{SITE}}}", DIRECTION)],
            "Of the packets that a direction was offered, those that were dropped, whatever the cause.",
        ),
        curves(
            "Corrupted, duplicated, held back",
            "pps",
            [
                (f"rate(testbed_fiber_{it}_packets_total{{{SITE}}}[15s])", f"{DIRECTION}: {it.replace('_', ' ')}")
                for it in impaired
            ],
            "What the impairments of a direction did to packets that were delivered. Not counted on netem.",
        ),
    ]


def links() -> list[Any]:
    return [
        states(
            "Carriers",
            [(f"testbed_link_up{{{SITE}}}", "{{link}} at {{site}}")],
            "Whether the gateway of a site sees light on its end of a link. A cut takes both ends down.",
            texts=UP,
        ),
        states(
            "Faults in force",
            [(f"testbed_fault_active{{{LAB}}}", "{{type}} {{target}}")],
            "Each fault from its injection to its end, however it ends; across all panels, too, as annotations.",
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
            "Alerts while they fire. What to do about each: its description in Prometheus, or docs/observability.md.",
            texts={"1": ("firing", "red")},
        ),
        curves(
            "Carrier changes",
            "short",
            [(f"sum by (link) (testbed_link_carrier_changes_total{{{SITE}}})", "{{link}}")],
            "Since the lab is up, both gateways together: a cut and its heal are four.",
            width=6,
        ),
        curves(
            "Faults injected",
            "short",
            [(f"testbed_faults_total{{{LAB}}}", "{{type}}")],
            "Since the lab is up, by type, ended ones included.",
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
            "The last certificate by direction (the one that leaves the site): delay without faults, the median error"
            " that was measured, and what is allowed. The verdict is of all that was measured, not of the delay alone.",
            texts={"verdict": WITHIN},
            width=16,
        ),
        figure(
            "Age of the certificate",
            "s",
            f"time() - max(testbed_certificate_timestamp_seconds{{{LAB}}})",
            "Since the fibers were measured. `testbed certify` measures them again.",
            width=8,
            height=8,
        ),
        curves(
            "Lateness, 99th percentile",
            "s",
            [(f"lab_link_site:testbed_fiber_lateness_seconds:p99_30s{{{SITE}}}", DIRECTION)],
            "How much later than due one packet in a hundred left: the emulator's own error, under the load of now."
            " Above 1 ms the report says that the fiber did not hold. fiberd only: netem does not time packets.",
            limit=1e-3,
            width=12,
        ),
        curves(
            "Lateness, median",
            "s",
            [(f"lab_link_site:testbed_fiber_lateness_seconds:p50_30s{{{SITE}}}", DIRECTION)],
            "How much later than due half of the packets left. The report allows 50 us.",
            limit=50e-6,
            width=12,
        ),
    ]


def ranks() -> list[Any]:
    return [
        states(
            "Ranks",
            [(f'min by (node, rank) (testbed_rank_up{{{SITE}}} or up{{job="agents", {SITE}}})', RANK)],
            "up: the process lives and answers the scrape. A paused rank lives and does not answer.",
            texts=UP,
        ),
        states(
            "Training",
            [(f'max by (node, rank) (testbed_job_info{{state="training", {SITE}}})', RANK)],
            "When a rank takes part in a training job.",
            texts={"1": ("training", "blue")},
        ),
        curves(
            "Straggler ratio",
            "short",
            [(f"lab_rank:testbed_straggler:ratio_rate30s{{{SITE}}}", RANK)],
            "Compute per step of a rank over the mean of the others. Above 1.25 it is a straggler, if others wait.",
            limit=1.25,
        ),
        curves(
            "Compute per step",
            "s",
            [(f"lab_rank:testbed_compute_seconds_per_step:ratio_rate30s{{{SITE}}}", RANK)],
            "Forward, backward and optimizer, mean over 30 s.",
        ),
        curves(
            "Sent by nodes",
            "bps",
            [(f'8 * rate(testbed_transmit_bytes_total{{job="agents", interface="fabric0", {SITE}}}[15s])', "{{node}}")],
            "What each node sends into the fabric of its site, whether it leaves the site or not.",
        ),
    ]


def orchestrator() -> list[Any]:
    return [
        curves(
            "CPU of the orchestrator",
            "percentunit",
            [
                (f"rate(testbed_emulator_cpu_seconds_total{{{LAB}}}[15s])", "emulator"),
                (f"rate(testbed_keeper_cpu_seconds_total{{{LAB}}}[15s])", "keeper"),
            ],
            "Shares of one core that the testbed takes from the training. On netem the kernel emulates, uncounted.",
            width=12,
        ),
        now(
            "Emulator",
            {"running": (f"max by (emulator, scheduling, version) (testbed_emulator_info{{{LAB}}})", "short")},
            "Which emulator carries the packets, and the scheduling it obtained.",
        ),
    ]


def build() -> model.Dashboard:
    """The whole dashboard. Numbers of panels follow their order, so that links to panels stay as long as it does."""
    lab = dashboard.QueryVariable("lab").label("Lab").datasource(SOURCE).query("label_values(testbed_emulator_up, lab)")
    site = (
        dashboard.QueryVariable("site").label("Site").datasource(SOURCE).multi(True).include_all(True).all_value(".*")
    )
    site.query('label_values(testbed_link_up{lab="$lab"}, site)')
    site.current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    for variable in (lab, site):
        variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)
        variable.allow_custom_value(False)
    made = (
        dashboard.Dashboard("Scale-across training testbed")
        .uid("scale-across-testbed")
        .description("Training across sites, the fibers between them, and whether they hold what they promise.")
        .tags(["testbed"])
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-15m", "now")
        .refresh("5s")
        .timezone("browser")
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
        made.with_row(dashboard.Row(title).id(number))
        for panel in panels():
            number += 1
            made.with_panel(panel.id(number))
    return made.build()


def main() -> int:
    json.dump(build(), sys.stdout, cls=JSONEncoder, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
