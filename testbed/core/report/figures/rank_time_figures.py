"""The plots of where the ranks' time went: compute and exposed communication of each rank, and all rank-seconds."""

from __future__ import annotations

from testbed.core.analysis.rank_seconds import RankSeconds
from testbed.core.report import formats
from testbed.core.report.document import Report
from testbed.core.report.figures.plotly_figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    Figure,
    Json,
    axis,
    categories,
    made,
    plain,
)
from testbed.core.report.sections import rank_seconds_section

__all__ = ["rank_seconds", "time_of_ranks"]

_COLOR_OF_CLASS = (GREEN, BLUE, YELLOW, PURPLE, SKY, VERMILLION, GREY, ORANGE, "#7A0018")
"""Of the classes of rank-seconds, in their order: neighbors in a bar differ most."""
_SHOWN_ATTEMPTS = 12
_SHOWN_RANKS = 16
_ROOM_OF_A_SHARE = 8
"""Per cent: a narrower part of a bar has no room for its number."""


def time_of_ranks(report: Report) -> Figure | None:
    if not any(each.compute_s + each.peer_wait_s + each.network_s for each in report.ranks):
        return None
    if len(report.ranks) <= _SHOWN_RANKS:
        groups = {f"{each.rank} · {each.node}": [each] for each in report.ranks}
        name = "rank"
    else:
        sites = dict.fromkeys(each.site for each in report.ranks)
        groups = {site: [each for each in report.ranks if each.site == site] for site in sites}
        name = "site (all of its ranks)"
    if len(groups) > _SHOWN_RANKS:
        groups, name = {"all ranks": list(report.ranks)}, ""
    parts = (("compute", "compute_s", BLUE), ("peer wait", "peer_wait_s", PURPLE), ("network", "network_s", VERMILLION))
    bars: list[Json] = [
        {
            "type": "bar",
            "x": [sum(getattr(each, field) for each in ranks) for ranks in groups.values()],
            "y": [plain(group) for group in groups],
            "name": part,
            "orientation": "h",
            "marker": {"color": color},
            "hovertemplate": "%{y}: %{x:.1f} s",
        }
        for part, field, color in parts
    ]
    return made(
        "time-of-ranks",
        "Compute and exposed communication",
        "Seconds that each rank computed, waited for a peer, and waited for the network.",
        bars,
        {
            "barmode": "stack",
            "legend": {"traceorder": "normal"},
            "xaxis": axis("rank-seconds"),
            "yaxis": axis(name, **categories(list(groups)), autorange="reversed"),
            "showlegend": True,
            "bargap": 0.35,
        },
    )


def rank_seconds(report: Report) -> Figure | None:
    shares = report.rank_seconds
    # Of a program all is one bar: not told apart.
    if shares is None or shares.total.total_s <= 0 or report.program is not None:
        return None
    spans = [each for each in shares.spans if not each.restart and each.seconds.total_s > 0]
    rows: dict[str, RankSeconds] = {"over all": shares.total}
    if 1 < len(spans) <= _SHOWN_ATTEMPTS:
        rows |= {each.label: each.seconds for each in spans}
    classes = rank_seconds_section.shown_classes(shares)
    colors = dict(zip(rank_seconds_section.CLASSES, _COLOR_OF_CLASS, strict=True))
    bars: list[Json] = []
    for key, name in classes.items():
        if not shares.total.by_class()[key]:
            continue
        seconds = [each.by_class()[key] for each in rows.values()]
        percent = [100.0 * part / each.total_s for part, each in zip(seconds, rows.values(), strict=True)]
        bars.append(
            {
                "type": "bar",
                "x": percent,
                "y": list(rows),
                "customdata": [formats.duration(part) for part in seconds],
                "text": [f"{value:.0f} %" if value >= _ROOM_OF_A_SHARE else "" for value in percent],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "name": name,
                "orientation": "h",
                "marker": {"color": colors[key]},
                "hovertemplate": "%{y}: %{x:.1f} %, %{customdata}",
            }
        )
    left_out = len(spans) > _SHOWN_ATTEMPTS
    return made(
        "rank-seconds",
        "Rank-seconds by class",
        "Share of each class in world size × wall time"
        + (", over all and per attempt" if len(rows) > 1 else "")
        + ("; the table has the attempts" if left_out else "")
        + f": {rank_seconds_section.sentence(shares)}.",
        bars,
        {
            "barmode": "stack",
            "legend": {"traceorder": "normal", "yref": "container", "y": 0, "yanchor": "bottom"},
            "xaxis": axis("share of rank-seconds (%)", range=[0, 100]),
            "yaxis": axis("job" if len(rows) == 1 else "attempt", **categories(list(rows)), autorange="reversed"),
            "showlegend": True,
            "bargap": 0.35,
        },
    )
