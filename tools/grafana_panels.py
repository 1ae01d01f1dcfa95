"""Panel types of the Grafana dashboard, built with Grafana's Foundation SDK: curves, figures, states and tables.

Panels are typed ``Any`` because the SDK's builders share no common type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as words
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
WINDOW: Final = "$__rate_interval"
"""Window of a rate: Grafana makes it at least four scrapes long, and longer where a panel shows hours."""
UP: Final = {"1": ("up", "green"), "0": ("down", "red")}
WITHIN: Final = {"1": ("within", "green"), "0": ("outside", "red")}

Queries = Sequence[tuple[str, str]]
"""Expression and legend of each query in a panel."""


def _mapped(texts: Mapping[str, tuple[str, str]]) -> list[Any]:
    return [
        model.ValueMap({value: model.ValueMappingResult(text, color) for value, (text, color) in texts.items()}),
    ]


def _thresholds(*steps: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    levels = [model.Threshold(value, color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(levels)


def _ask(panel: Any, queries: Queries, *, instant: bool = False, as_table: bool = False) -> None:
    for number, (expression, legend) in enumerate(queries):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + number))
        query.datasource(SOURCE)
        query = query.instant() if instant else query.range().interval(_least_step(expression))
        if as_table:
            query.format(PromQueryFormat.TABLE)
        panel.with_target(query)


def _least_step(expression: str) -> str:
    """Return a query's *Min step*, which Grafana takes for the scrape interval: 1 s, where its default is 15 s.

    A :data:`WINDOW` is at least four of them. One of 4 s fluctuates with single training steps, as the 15 s of the
    recording rules do not, so a query with such a window has steps of 4 s.
    """
    return "4s" if WINDOW in expression else "1s"


def _placed(panel: Any, title: str, description: str, unit: str, width: int, height: int) -> Any:
    panel.title(title).description(description).unit(unit).span(width).height(height)
    return panel.datasource(SOURCE)


def curves(
    title: str,
    unit: str,
    queries: Queries,
    description: str,
    *,
    width: int = 8,
    limit: float | None = None,
    share: bool = False,
) -> Any:
    """Return lines over time. ``limit`` draws a threshold line; ``share`` stacks areas from 0 to 1."""
    panel = _placed(timeseries.Panel(), title, description, unit, width, 8)
    panel.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(words.LegendDisplayMode.LIST)
        .placement(words.LegendPlacement.BOTTOM)
    )
    panel.tooltip(common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI).sort(words.SortOrder.DESCENDING))
    panel.line_width(1).fill_opacity(10).show_points(words.VisibilityMode.NEVER).min(0)
    if share:
        panel.stacking(common.StackingConfig().mode(words.StackingMode.NORMAL).group("A")).fill_opacity(60).max(1)
    if limit is not None:
        panel.thresholds(_thresholds((None, "green"), (limit, "red")))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(words.GraphThresholdsStyleMode.LINE))
    _ask(panel, queries)
    return panel


def figure(
    title: str,
    unit: str,
    query: str,
    description: str,
    *,
    steps: Sequence[tuple[float | None, str]] = ((None, "text"),),
    texts: Mapping[str, tuple[str, str]] | None = None,
    width: int = 4,
    height: int = 4,
) -> Any:
    """Return the current value of one number, in the colour of the highest of ``steps`` that it reaches."""
    panel = _placed(stat.Panel(), title, description, unit, width, height)
    panel.thresholds(_thresholds(*steps)).no_value("–")
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.graph_mode(words.BigValueGraphMode.AREA if not texts else words.BigValueGraphMode.NONE)
    if texts:
        panel.mappings(_mapped(texts))
    _ask(panel, [(query, "")])
    return panel


def states(
    title: str,
    queries: Queries,
    description: str,
    *,
    texts: Mapping[str, tuple[str, str]] | None = None,
    width: int = 12,
) -> Any:
    """Return a bar over time for each series, coloured by its value."""
    panel = _placed(statetimeline.Panel(), title, description, "short", width, 8)
    panel.show_value(words.VisibilityMode.NEVER).merge_values(True).line_width(0).fill_opacity(80)
    panel.mappings(_mapped(texts or {}))
    panel.color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    panel.thresholds(_thresholds((None, "transparent"), (1, "orange"))).no_value("none")
    _ask(panel, queries)
    return panel


def now(
    title: str,
    columns: Mapping[str, tuple[str, str]],
    description: str,
    *,
    texts: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
    width: int = 12,
) -> Any:
    """Return a table of current values, one row per set of labels.

    ``columns`` maps each heading to a query and a unit, ``texts`` maps a heading to the texts of its values.
    """
    panel = _placed(table.Panel(), title, description, "short", width, 8)
    _ask(panel, [(query, "") for query, _ in columns.values()], instant=True, as_table=True)
    # Grafana names the value of a single query "Value", those of several queries "Value #A", "Value #B", and so on.
    names = ["Value"] if len(columns) == 1 else [f"Value #{chr(ord('A') + number)}" for number in range(len(columns))]
    panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    options = {
        "excludeByName": {"Time": True},
        "renameByName": dict(zip(names, columns, strict=True)),
    }
    panel.with_transformation(model.DataTransformerConfig(id_val="organize", options=options))
    for heading, (_, unit) in columns.items():
        panel.override_by_name(heading, [model.DynamicConfigValue("unit", unit)])
    for heading, mapping in (texts or {}).items():
        as_text = model.DynamicConfigValue("custom.cellOptions", {"type": "color-text"})
        panel.override_by_name(heading, [model.DynamicConfigValue("mappings", _mapped(mapping)), as_text])
    return panel


class Regions(Builder[model.AnnotationQuery]):
    """Annotations in all panels while ``expression`` is true, with a ``title`` made of its labels.

    The SDK's own builder lacks these fields: it supports only annotations stored in Grafana.
    """

    def __init__(self, name: str, expression: str, title: str) -> None:
        self._name, self._expression, self._title = name, expression, title

    def build(self) -> model.AnnotationQuery:
        query = _Regions(name=self._name, datasource=SOURCE, enable=True, icon_color="orange", expr=self._expression)
        query.title = self._title
        return query


class _Regions(model.AnnotationQuery):
    title = ""

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "titleFormat": self.title, "textFormat": "", "step": "1s"}
