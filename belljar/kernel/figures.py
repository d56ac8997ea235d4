"""matplotlib: every figure that is open after a cell, or at show(), is sent as a PNG with its data, and closed. Under any backend.

Nothing here imports matplotlib: a cell that draws has done so, and the others should not pay for it.
"""

from __future__ import annotations

import contextlib
import io
import sys
import weakref
from types import ModuleType
from typing import Any

from belljar.kernel.boxes import box_chart, note_boxes

CHART = "application/vnd.belljar.chart+json"


class Figures:
    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._shown: weakref.WeakSet[Any] = weakref.WeakSet()
        # Also how `fig` as the last expression of a cell, and display(fig), are shown.
        shell.display_formatter.mimebundle_formatter.for_type_by_name("matplotlib.figure", "Figure", self._show)
        shell.events.register("post_execute", self.flush)

    def adopt(self, pyplot: ModuleType) -> None:
        """Called when pyplot has been imported: show() means now, whatever the backend makes of it."""
        figure_class = sys.modules["matplotlib.figure"].Figure
        pyplot.show = lambda *args, **kwargs: self.flush()  # type: ignore[attr-defined]
        figure_class.show = lambda figure, *args, **kwargs: self._publish(figure)
        note_boxes(sys.modules["matplotlib.axes"].Axes)

    def flush(self) -> None:
        """Send and close what is open, in the order of the figures' numbers. What display() has shown already is only closed."""
        helpers = sys.modules.get("matplotlib._pylab_helpers")
        if helpers is None or "matplotlib.pyplot" not in sys.modules:
            return
        for number in sorted(helpers.Gcf.figs):
            manager = helpers.Gcf.figs.get(number)
            figure = getattr(getattr(manager, "canvas", None), "figure", None)
            try:
                if figure is not None and figure not in self._shown:
                    self._publish(figure)
            finally:
                helpers.Gcf.destroy(number)
        self._shown = weakref.WeakSet()

    def _publish(self, figure: Any) -> None:
        try:
            data, metadata = render(figure)
        except Exception:
            self._shell.showtraceback()
            return
        self._shown.add(figure)
        if data:
            self._shell.display_pub.publish({"text/plain": repr(figure), **data}, metadata)

    def _show(self, figure: Any, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        self._shown.add(figure)
        return render(figure)


def render(figure: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A bundle of the figure; empty if nothing was drawn on it."""
    if not figure.axes and not figure.lines and not figure.texts and not figure.images and not figure.patches:
        return {}, {}
    if figure.canvas is None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=figure.dpi, bbox_inches="tight")
    png = buffer.getvalue()
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    data: dict[str, Any] = {"image/png": png}
    if chart := _chart_of(figure):
        data[CHART] = chart
    return data, {"image/png": {"width": width, "height": height}}


def _chart_of(figure: Any) -> dict[str, Any] | None:
    """The figure's data, where the template has what computes it and the figure is of a kind that it knows."""
    with contextlib.suppress(Exception):
        from e2b_charts import chart_figure_to_dict

        return box_chart(figure) or chart_figure_to_dict(figure)
    return None
