"""What the dashboards are put together from: queries, panels with good habits, and the page that lays them out.

A panel takes its place from the order in which a page is given it: rows are 24 columns wide, and on a narrow
screen Grafana puts all panels below each other. Every panel has a title, a description and a unit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import (
    common,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import prometheus as prometheus_model

DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24
"""Columns of Grafana's grid."""
TAG = "stream-svt"

GOOD, CAREFUL, BAD, CALM = "green", "orange", "red", "blue"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression; ``legend`` names its series, by labels in double braces."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: a query that gives a value for each row, or a label of it where ``expr`` is empty.

    ``steps`` colour the value; with ``bar`` it is drawn as a share of 1.
    """

    title: str
    expr: str = ""
    label: str = ""
    unit: str = ""
    decimals: int | None = None
    steps: tuple[tuple[float | None, str], ...] = ()
    bar: bool = False
    link: str = ""
    description: str = ""


@dataclass(slots=True)
class Page:
    """One dashboard, given row by row."""

    uid: str
    title: str
    description: str
    since: str
    variables: Sequence[Builder[model.VariableModel]]
    annotations: Sequence[Builder[model.AnnotationQuery]] = ()
    links: Sequence[Builder[model.DashboardLink]] = ()
    _rows: list[tuple[str, tuple[Builder[model.Panel], ...]]] = field(default_factory=list)

    def row(self, title: str, *panels: Builder[model.Panel]) -> None:
        """Add a row; its panels flow from left to right, and down."""
        self._rows.append((title, panels))

    def build(self) -> model.Dashboard:
        """Return the dashboard with a number for every panel."""
        page = (
            build.Dashboard(self.title)
            .uid(self.uid)
            .description(self.description)
            .tags([TAG])
            .readonly()
            .timezone("browser")
            .time(self.since, "now")
            .refresh("30s")
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .variables(list(self.variables))
            .annotations(list(self.annotations))
            .links([*self.links, _others()])
        )
        skyline = [0] * WIDTH
        for title, panels in self._rows:
            top = max(skyline)
            page.with_row(build.Row(title).grid_pos(model.GridPos(h=1, w=WIDTH, x=0, y=top)))
            skyline = [top + 1] * WIDTH
            for panel in panels:
                page.with_panel(_Placed(panel, skyline))
        built = page.build()
        for place, one in enumerate(built.panels or [], 1):
            one.id_val = place
        return built

    def text(self) -> str:
        """Return the dashboard as Grafana reads it."""
        return json.dumps(self.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


class _Placed(Builder[model.Panel]):
    """A panel in the highest place that is free, of those the leftmost."""

    def __init__(self, panel: Builder[model.Panel], skyline: list[int]) -> None:
        self._panel = panel.build()
        size = self._panel.grid_pos or model.GridPos()
        tops = [max(skyline[x : x + size.w]) for x in range(WIDTH - size.w + 1)]
        x = tops.index(min(tops))
        skyline[x : x + size.w] = [tops[x] + size.h] * size.w
        self._panel.grid_pos = model.GridPos(h=size.h, w=size.w, x=x, y=tops[x])

    def build(self) -> model.Panel:
        """Return the panel."""
        return self._panel


def _others() -> build.DashboardLink:
    return (
        build.DashboardLink("stream-svt")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(as_dropdown=True)
        .include_vars(include_vars=True)
        .keep_time(keep_time=True)
    )


# Variables, annotations, links


def datasource() -> build.DatasourceVariable:
    """Return the variable that says which Prometheus is asked."""
    return (
        build.DatasourceVariable("datasource")
        .label("Prometheus")
        .description("Which Prometheus is asked.")
        .type("prometheus")
    )


def variable(name: str, query: str, description: str) -> build.QueryVariable:
    """Return a variable whose values are looked up; the first of them is taken."""
    return (
        build.QueryVariable(name)
        .label(name.capitalize())
        .description(description)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": name})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .include_all(include_all=False)
        .multi(multi=False)
    )


class _Annotation(model.AnnotationQuery):
    """An annotation with the fields that Prometheus' part of Grafana reads and the builders do not know."""

    more: Mapping[str, object] = {}

    def to_json(self) -> dict[str, object]:
        return super().to_json() | dict(self.more)


_STEP = "60s"
"""The shortest time between two marks."""


class Marks(Builder[model.AnnotationQuery]):
    """Marks on every time axis of a dashboard, wherever an expression is above 0.

    Args:
        name, color: How the switch above the dashboard is called, and the marks' colour.
        expr: Above 0 where there is something to mark; with ``moments``, Unix time in milliseconds.
        title, text: What a mark says; labels in double braces.
    """

    def __init__(
        self, name: str, color: str, expr: str, *, title: str, text: str, moments: bool = False
    ) -> None:
        self._mark = _Annotation(name=name, datasource=DATASOURCE, icon_color=color, expr=expr)
        # Some releases of Grafana take the expression from here, others from the target.
        self._mark.more = {
            "step": _STEP,
            "target": {"expr": expr, "interval": _STEP, "instant": False, "range": True, "refId": "Anno"},
            "tagKeys": "",
            "textFormat": text,
            "titleFormat": title,
            "useValueForTime": "on" if moments else False,
        }

    def build(self) -> model.AnnotationQuery:
        """Return the annotation."""
        return self._mark


def leads_to(title: str, url: str) -> build.DashboardLink:
    """Return a link to another dashboard, for the values of a panel."""
    return build.DashboardLink(title).url(url)


def address(uid: str, **values: str) -> str:
    """Return the address of a dashboard for the same Prometheus, application and time, and the values given."""
    chosen = "".join(f"&var-{name}={value}" for name, value in values.items())
    return f"/d/{uid}?${{datasource:queryparam}}&${{application:queryparam}}{chosen}&${{__url_time_range}}"


# Panels


def steps(*values: tuple[float | None, str]) -> build.ThresholdsConfig:
    """Return colours from a value upwards, the first from None."""
    return (
        build.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=value, color=color) for value, color in values])
    )


def _target(query: Query, place: int) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .expr(query.expr)
        .legend_format(query.legend)
        .ref_id(chr(ord("A") + place))
        .editor_mode(prometheus_model.QueryEditorMode.CODE)
        .datasource(DATASOURCE)
    )


def _newest() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def number(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    width: int = 4,
    height: int = 4,
    colors: Sequence[tuple[float | None, str]] = ((None, CALM),),
    decimals: int | None = None,
    names: bool = False,
    link: build.DashboardLink | None = None,
    nothing: str = "–",  # noqa: RUF001  a dash is what is shown
) -> stat.Panel:
    """Return a panel that shows the newest value of each query, large.

    Args:
        colors: From which value on which colour.
        names: Show the names of the series beside their values.
        nothing: What is shown without data.
    """
    mode = kinds.BigValueTextMode.VALUE_AND_NAME if names else kinds.BigValueTextMode.AUTO
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .thresholds(steps(*colors))
        .color_mode(kinds.BigValueColorMode.VALUE)
        .graph_mode(kinds.BigValueGraphMode.NONE)
        .text_mode(mode)
        .no_value(nothing)
        .reduce_options(_newest())
        .height(height)
        .span(width)
    )
    if decimals is not None:
        panel.decimals(decimals)
    if link is not None:
        panel.data_links([link])
    for place, query in enumerate(queries):
        panel.with_target(_target(query, place).instant())
    return panel


def _mapping(words: Mapping[str, tuple[str, str]]) -> model.ValueMap:
    return model.ValueMap(
        options={
            value: model.ValueMappingResult(text=text, color=color, index=place)
            for place, (value, (text, color)) in enumerate(words.items())
        }
    )


def lines(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    width: int = 12,
    height: int = 8,
    floor: float | None = 0,
    ceiling: float | None = None,
    stacked: bool = False,
    steps_only: bool = False,
    colors: Sequence[tuple[float | None, str]] = (),
    logarithmic: bool = False,
    link: build.DashboardLink | None = None,
) -> timeseries.Panel:
    """Return a panel of values over time.

    Args:
        floor, ceiling: Ends of the axis; None leaves them to the data.
        stacked, steps_only: How it is drawn; a value that holds until it changes is drawn in steps.
        colors: Lines drawn across at these values.
    """
    legend = (
        common.VizLegendOptions()
        .display_mode(kinds.LegendDisplayMode.LIST)
        .placement(kinds.LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
    )
    tooltip = common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING)
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .legend(legend)
        .tooltip(tooltip)
        .fill_opacity(60 if stacked else 8)
        .line_width(1 if stacked else 2)
        .show_points(kinds.VisibilityMode.NEVER)
        .height(height)
        .span(width)
    )
    if steps_only:
        panel.line_interpolation(kinds.LineInterpolation.STEP_AFTER)
    if stacked:
        panel.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL))
    if floor is not None:
        panel.min(floor)
    if ceiling is not None:
        panel.max(ceiling)
    if logarithmic:
        scale = (
            common.ScaleDistributionConfig().type(kinds.ScaleDistribution.SYMLOG).log(10).linear_threshold(1)
        )
        panel.scale_distribution(scale)
    if colors:
        panel.thresholds(steps(*colors))
        panel.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(kinds.GraphThresholdsStyleMode.DASHED)
        )
    if link is not None:
        panel.data_links([link])
    for place, query in enumerate(queries):
        panel.with_target(_target(query, place).range())
    return panel


def drawn(panel: timeseries.Panel, series: str, **custom: object) -> timeseries.Panel:
    """Draw one series of a panel differently: options of Grafana by name, ``color`` among them.

    A double underscore stands for a dot: ``custom__lineStyle``.
    """
    properties = [
        model.DynamicConfigValue(id_val=name.replace("__", "."), value=value)
        for name, value in custom.items()
    ]
    return panel.override_by_name(series, properties)


def color(name: str) -> dict[str, str]:
    """Return a fixed colour as an option of `drawn`."""
    return {"mode": "fixed", "fixedColor": name}


def timeline(
    title: str,
    description: str,
    query: Query,
    *,
    words: Mapping[str, tuple[str, str]],
    width: int = 12,
    height: int = 8,
) -> statetimeline.Panel:
    """Return a panel with one band for each series; ``words`` give text and colour of each value."""
    return (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit("none")
        .mappings([_mapping(words)])
        .thresholds(steps((None, "text")))
        .merge_values(merge_values=True)
        .show_value(kinds.VisibilityMode.AUTO)
        .row_height(0.8)
        .fill_opacity(70)
        .height(height)
        .span(width)
        .with_target(_target(query, 0).range())
    )


def rows(
    title: str,
    description: str,
    columns: Sequence[Column],
    *,
    width: int = WIDTH,
    height: int = 9,
    sort: str = "",
    descending: bool = False,
) -> table.Panel:
    """Return a table: the columns' queries are joined by the labels that they share.

    The queries' results should have the same labels; each label that no column shows is hidden.
    """
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit("none")
        .align(kinds.FieldTextAlignment.AUTO)
        .cell_height(kinds.TableCellHeight.SM)
        .filterable(filterable=True)
        .height(height)
        .span(width)
    )
    asked = [column for column in columns if column.expr]
    renamed = {column.label: column.title for column in columns if column.label}
    for place, column in enumerate(asked):
        query = _target(Query(column.expr), place).instant().format(prometheus_model.PromQueryFormat.TABLE)
        panel.with_target(query)
        # One query alone has its value in a column without a letter.
        renamed["Value" if len(asked) == 1 else f"Value #{chr(ord('A') + place)}"] = column.title
    panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    organized: dict[str, Any] = {
        "renameByName": renamed,
        "indexByName": {name: place for place, name in enumerate(_in_order(columns, renamed))},
        "includeByName": dict.fromkeys(renamed, True),
    }
    panel.with_transformation(model.DataTransformerConfig(id_val="organize", options=organized))
    for column in columns:
        panel.override_by_name(column.title, _properties(column))
    if sort:
        panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(desc=descending)])
    return panel


def _in_order(columns: Sequence[Column], renamed: Mapping[str, str]) -> list[str]:
    places = {column.title: place for place, column in enumerate(columns)}
    return sorted(renamed, key=lambda name: places[renamed[name]])


def _properties(column: Column) -> list[model.DynamicConfigValue]:
    found: list[tuple[str, object]] = []
    if column.unit:
        found.append(("unit", column.unit))
    if column.decimals is not None:
        found.append(("decimals", column.decimals))
    if column.description:
        found.append(("description", column.description))
    if column.steps:
        found.append(("thresholds", steps(*column.steps).build()))
        found.append(("color", {"mode": "thresholds"}))
        if not column.bar:
            found.append(("custom.cellOptions", kinds.TableColorTextCellOptions()))
    if column.bar:
        found += [("min", 0), ("max", 1)]
        gauge = kinds.TableBarGaugeCellOptions(
            mode=kinds.BarGaugeDisplayMode.BASIC, value_display_mode=kinds.BarGaugeValueMode.TEXT
        )
        found.append(("custom.cellOptions", gauge))
    if column.link:
        found.append(("links", [{"title": f"Open {column.title.lower()}", "url": column.link}]))
    return [model.DynamicConfigValue(id_val=name, value=value) for name, value in found]
