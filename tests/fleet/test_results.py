"""Results of real libraries in the real templates: every MIME type, every kind of chart, with and without show()."""

from __future__ import annotations

import json
from typing import Any

from belljar.fleet.execution import Execution
from belljar.fleet.results import CHART, Result
from tests.conftest import CreateSandbox
from tests.fleet.test_contexts import ran

PNG, JPEG = b"\x89PNG\r\n", b"\xff\xd8\xff"


def pictures(execution: Execution) -> list[Result]:
    found = [result for result in execution.results if result.png is not None]
    assert all((result.png or b"").startswith(PNG) for result in found)
    return found


def axes(execution: Execution) -> list[dict[str, Any]]:
    """What the charts of a cell show, one entry for each of their axes."""
    charts = [result.chart for result in pictures(execution)]
    assert all(charts), "a figure came without its chart"
    return [part for chart in charts for part in (chart["elements"] if chart["type"] == "superchart" else [chart])]


async def test_every_mime_type_comes_back_as_what_it_is(create: CreateSandbox) -> None:
    sandbox = await create("python-data")
    await ran(sandbox, "from IPython.display import *\nimport pandas as pd, PIL.Image, io")
    frame = (await ran(sandbox, "df = pd.DataFrame({'a': [1, 2]})\ndf")).main
    assert frame is not None and "<table" in (frame.html or "") and (frame.text or "").split() == ["a", "0", "1", "1", "2"]
    shown = await ran(
        sandbox, "display(df)\ndisplay(HTML('<b>h</b>'))\ndisplay(Markdown('**m**'))\ndisplay(Latex('$l$'))\nMath('x^2')"
    )
    assert [result.main for result in shown.results] == [False, False, False, False, True]
    _, html, markdown, latex, math = shown.results
    assert (html.html, markdown.markdown, latex.latex) == ("<b>h</b>", "**m**", "$l$") and "x^2" in (math.latex or "")
    image = "PIL.Image.new('RGB', (8, 8), 'red')"
    picture = (await ran(sandbox, image)).main
    assert picture is not None and (picture.png or b"").startswith(PNG)
    code = f"b = io.BytesIO(); {image}.save(b, 'JPEG')\ndisplay(Image(b.getvalue(), format='jpeg'))\ndisplay(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))"
    jpeg, svg = (await ran(sandbox, code)).results
    assert (jpeg.jpeg or b"").startswith(JPEG) and "<svg" in (svg.svg or "")
    code = """
display(JSON({"a": [1, None]}))
display(Javascript("alert(1)"))
display({"application/vnd.own+json": {"v": 1}, "text/plain": "own"}, raw=True)
class Pdf:
    def _repr_pdf_(self): return b"%PDF-1.4"
Pdf()
"""
    document, script, own, pdf = (await ran(sandbox, code)).results
    assert (document.json, script.javascript, own.text) == ({"a": [1, None]}, "alert(1)", "own")
    assert json.loads(own.data["application/vnd.own+json"]) == {"v": 1} and pdf.pdf == b"%PDF-1.4" and pdf.main
    handle = """
h = display(Markdown("1"), display_id=True)
for n in range(2, 5): h.update(Markdown(str(n)))
print("gone")
clear_output(wait=True)
h.display(Markdown("5"))
h.update(Markdown("6"))
"""
    assert [result.markdown for result in (await ran(sandbox, handle)).results] == ["6"]
    both = await ran(sandbox, "print('a'); display('b'); print('c')\n'd'")
    assert (both.stdout, [result.text for result in both.results]) == ("a\nc\n", ["'b'", "'d'"])
    odd = await ran(sandbox, "'\\ud800 \\x00 é'")
    assert "é" in (odd.text or "")


async def test_every_open_figure_comes_back_with_or_without_show(create: CreateSandbox) -> None:
    sandbox = await create("python-data")
    await ran(sandbox, "import matplotlib, matplotlib.pyplot as plt, pandas as pd, seaborn as sns")
    line = "plt.figure(); plt.plot([1, 2, 3])\n"
    for ending in ("", "plt.show()", "plt.show(); plt.show()", "None"):
        assert len(pictures(await ran(sandbox, line + ending))) == 1, f"with {ending!r}"
    assert (await ran(sandbox, "plt.get_fignums()")).text == "[]", "figures were left open"
    assert len(pictures(await ran(sandbox, line + line))) == 2
    assert len(pictures(await ran(sandbox, line + "plt.show()\n" + line + "plt.show()"))) == 2
    ordered = await ran(sandbox, f"print('before')\n{line}plt.show()\nprint('after')")
    assert ordered.stdout == "before\nafter\n"
    assert len(pictures(await ran(sandbox, "fig, ax = plt.subplots(); ax.plot([1]); fig"))) == 1, "the figure came twice, or never"
    for backend in ("agg", "svg", "pdf"):
        assert len(pictures(await ran(sandbox, f"matplotlib.use('{backend}')\n{line}"))) == 1, f"under {backend}"
    assert len(pictures(await ran(sandbox, "%matplotlib inline\n" + line))) == 1
    assert len(pictures(await ran(sandbox, "pd.DataFrame({'a': [1, 3]}).plot()"))) == 1
    assert len(pictures(await ran(sandbox, "sns.scatterplot(x=[1, 2], y=[3, 4])"))) == 1
    failed = await sandbox.run_code(line + "1 / 0")
    assert failed.error is not None and failed.error.name == "ZeroDivisionError"
    assert (await ran(sandbox, "len(plt.get_fignums())")).text in ("0", "1")


async def test_charts_come_with_their_data(create: CreateSandbox) -> None:
    sandbox = await create("code-interpreter")
    await ran(sandbox, "import matplotlib.pyplot as plt, numpy as np")
    code = """
plt.plot([1, 2, 3], [10, 100, 1000], label="s")
plt.title("T"); plt.xlabel("time (s)"); plt.ylabel("mass"); plt.yscale("log"); plt.legend()
"""
    (line,) = axes(await ran(sandbox, code))
    assert (line["type"], line["title"], line["x_label"], line["x_unit"], line["y_label"]) == ("line", "T", "time (s)", "s", "mass")
    assert (line["y_scale"], line["elements"][0]["label"]) == ("log", "s")
    assert [list(point) for point in line["elements"][0]["points"]] == [[1, 10], [2, 100], [3, 1000]]
    code = """
plt.scatter([1, 2], [3, 4]); plt.show()
plt.bar(["a", "b"], [5, 6]); plt.show()
plt.pie([1, 3], labels=["p", "q"]); plt.show()
plt.boxplot([[1, 2, 3, 4, 10]]); plt.show()
"""
    scatter, bar, pie, box = axes(await ran(sandbox, code))
    assert (scatter["type"], bar["type"], pie["type"], box["type"]) == ("scatter", "bar", "pie", "box_and_whisker")
    assert [list(point) for point in scatter["elements"][0]["points"]] == [[1, 3], [2, 4]]
    assert [(element["label"], element["value"]) for element in bar["elements"]] == [("a", 5), ("b", 6)]
    assert [element["label"] for element in pie["elements"]] == ["p", "q"] and box["elements"][0]["median"] == 3
    assert box["elements"][0]["outliers"] == [10] and box["elements"][0]["max"] == 4
    several = await ran(sandbox, "fig, (a, b) = plt.subplots(1, 2); a.plot([1, 2]); b.bar(['x'], [1]); fig.suptitle('both')")
    assert [part["type"] for part in axes(several)] == ["line", "bar"] and several.chart["type"] == "superchart"
    assert CHART in pictures(several)[0].data


async def test_plotly_bokeh_and_sympy_show_as_in_a_notebook(create: CreateSandbox) -> None:
    sandbox = await create("code-interpreter")
    plotly = "import plotly.express as px\nfig = px.line(x=[1, 2], y=[3, 4])\n"
    for ending in ("fig", "fig.show()"):
        shown = await ran(sandbox, plotly + ending)
        figure = json.loads(next(result.data["application/vnd.plotly.v1+json"] for result in shown.results))
        assert figure["data"][0]["type"] == "scatter"
    bokeh = """
from bokeh.io import output_notebook
from bokeh.plotting import figure, show
output_notebook(hide_banner=True)
p = figure(); p.line([1, 2], [3, 4])
show(p)
"""
    types = {mime for result in (await ran(sandbox, bokeh)).results for mime in result.data}
    assert types & {"text/html", "application/javascript", "application/vnd.bokehjs_exec.v0+json"}
    formula = (await ran(sandbox, "import sympy\nx = sympy.symbols('x')\nsympy.Integral(sympy.sqrt(x), x)")).main
    assert formula is not None and "\\int" in (formula.latex or "") and formula.text
    polars = (await ran(sandbox, "import polars\npolars.DataFrame({'a': [1]})")).main
    assert polars is not None and "<table" in (polars.html or "") and "shape" in (polars.text or "")
