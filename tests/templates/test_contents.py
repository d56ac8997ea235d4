"""What the templates promise, tried in fresh sandboxes."""

from __future__ import annotations

from tests.conftest import CreateSandbox, said

DATA = ("numpy", "pandas", "pyarrow", "matplotlib", "seaborn", "IPython", "requests")
INTERPRETER = (
    *DATA,
    *("polars", "scipy", "sklearn", "skimage", "statsmodels.api", "sympy", "xgboost", "plotly", "bokeh", "ipykernel"),
    *("PIL", "cv2", "librosa", "spacy", "nltk", "httpx", "bs4", "openpyxl", "yaml", "jinja2", "openai", "anthropic"),
)


async def imported(create: CreateSandbox, template: str, modules: tuple[str, ...]) -> str:
    sandbox = await create(template)
    code = f"import {', '.join(modules)}; print(len([{', '.join(module.split('.')[0] for module in modules)}]))"
    result = await sandbox.processes.run(["python3", "-c", code], timeout_s=500)
    assert result.exit_code == 0, result.stderr_text[-2000:]
    return result.stdout_text.strip()


async def test_python_data_imports_all_its_libraries_and_has_its_data(create: CreateSandbox) -> None:
    assert await imported(create, "python-data", DATA) == str(len(DATA))
    sandbox = await create("python-data")
    code = "import pandas; df = pandas.read_csv('/data.csv')\n"
    code += "print(df.fillna(0).isna().sum().sum(), df.interpolate().shape == df.shape)"
    assert await said(sandbox, ["python", "-c", code]) == "0 True"


async def test_code_interpreter_imports_everything_at_once(create: CreateSandbox) -> None:
    assert await imported(create, "code-interpreter", INTERPRETER) == str(len(INTERPRETER))


async def test_code_interpreter_is_known_by_both_names_and_works_where_it_says(create: CreateSandbox) -> None:
    sandbox = await create("code_interpreter")
    assert sandbox.record.template == "code-interpreter"
    assert await said(sandbox, "pwd") == "/home/user"
    assert (await said(sandbox, "node --version")).startswith("v22.")
    assert await said(sandbox, ["node", "-e", "console.log([1, 2, 3].map(n => n * n).join())"]) == "1,4,9"
    assert await said(sandbox, "touch /workspace/x /home/user/x && pip --version | cut -d' ' -f1") == "pip"


WHEEL = """
import zipfile
info = "tiny-1.dist-info"
with zipfile.ZipFile("/workspace/tiny-1-py3-none-any.whl", "w") as wheel:
    wheel.writestr("tiny.py", "answer = 42")
    wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    names = ("tiny.py", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD")
    wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\\n" for name in names))
"""


async def test_what_a_user_installs_is_importable_without_sudo(create: CreateSandbox) -> None:
    sandbox = await create("base")
    await said(sandbox, ["python3", "-c", WHEEL])
    await said(sandbox, "pip install --no-index /workspace/tiny-1-py3-none-any.whl")
    assert await said(sandbox, "python3 -c 'import tiny; print(tiny.answer)'") == "42"
