from pandastack import Sandbox

# One Firecracker microVM, one persistent kernel; state survives across run_code calls.
with Sandbox.create(template="code-interpreter", ttl_seconds=300) as sbx:
    sbx.filesystem.write("/workspace/sales.csv", "region,revenue\nnorth,3\nsouth,4\nnorth,5\n")  # the page has this file already
    ctx = sbx.create_code_context()  # language="python" by default

    # Cell 1: load data into the live kernel.
    ctx.run_code("import pandas as pd; df = pd.read_csv('/workspace/sales.csv')")

    # Cell 2: model-generated code that produces a chart.
    ex = ctx.run_code(
        "import matplotlib; matplotlib.use('Agg')\n"
        "import matplotlib.pyplot as plt\n"
        "df.groupby('region')['revenue'].sum().plot.bar()\n"
        "plt.tight_layout()",
        timeout_seconds=30,
    )

    # Rich output as an object — base64 PNG, not scraped stdout.
    if ex.png:
        import base64
        with open("chart.png", "wb") as f:
            f.write(base64.b64decode(ex.png))
    print(ex.text)            # text repr / stdout
    print(len(ex.results))    # every result the cell emitted (charts, tables, reprs)
