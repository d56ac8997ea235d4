"""The data of box plots, noted when they are drawn: a drawing does not tell it, as boxes may be lines or patches, lying or not."""

from __future__ import annotations

from functools import wraps
from typing import Any

NOTED = "_belljar_boxes"  # on the axes themselves, so that it goes when they go


def note_boxes(axes_class: Any) -> None:
    """Keep what `Axes.bxp` is given; pyplot, pandas and seaborn all come down to it."""
    draw = axes_class.bxp

    @wraps(draw)
    def bxp(axes: Any, bxpstats: Any, *args: Any, **kwargs: Any) -> Any:
        stats = list(bxpstats)
        drawn = draw(axes, stats, *args, **kwargs)
        lying = kwargs.get("orientation") == "horizontal" or kwargs.get("vert") is False
        noted = [(one, median, lying) for one, median in zip(stats, drawn["medians"], strict=False)]
        setattr(axes, NOTED, [*getattr(axes, NOTED, ()), *noted])
        return drawn

    axes_class.bxp = bxp


def box_chart(figure: Any) -> dict[str, Any] | None:
    """The chart of a figure with box plots, in the shape of e2b_charts; None if it has none."""
    every = figure.get_axes()
    if not any(_boxes(axes) for axes in every):
        return None
    charts = [_chart_of(axes) for axes in every]
    return charts[0] if len(charts) == 1 else {"type": "superchart", "title": figure.get_suptitle(), "elements": charts}


def _boxes(axes: Any) -> list[tuple[dict[str, Any], Any, bool]]:
    return [box for box in getattr(axes, NOTED, ()) if box[1].axes is axes]  # what was removed since is on none


def _chart_of(axes: Any) -> dict[str, Any]:
    from e2b_charts.charts.base import Chart2D, ChartType
    from e2b_charts.main import get_chart_from_ax

    boxes = _boxes(axes)
    if not boxes:
        return get_chart_from_ax(axes).model_dump()  # type: ignore[no-any-return]
    chart: dict[str, Any] = Chart2D(ax=axes, type=ChartType.BOX_AND_WHISKER).model_dump()
    lying = boxes[0][2]
    if lying:  # as the package does for bars: x is what tells them apart
        for name in ("label", "unit"):
            chart[f"x_{name}"], chart[f"y_{name}"] = chart[f"y_{name}"], chart[f"x_{name}"]
    ticks = [tick.get_text() for tick in (axes.get_yticklabels() if lying else axes.get_xticklabels())]
    chart["elements"] = [_element(stats, ticks[n] if n < len(ticks) else str(n + 1)) for n, (stats, _, _) in enumerate(boxes)]
    return chart


def _element(stats: dict[str, Any], tick: str) -> dict[str, Any]:
    return {
        "label": str(stats.get("label") or tick),
        "min": float(stats["whislo"]),
        "first_quartile": float(stats["q1"]),
        "median": float(stats["med"]),
        "third_quartile": float(stats["q3"]),
        "max": float(stats["whishi"]),
        "outliers": [float(value) for value in stats.get("fliers", ())],
    }
