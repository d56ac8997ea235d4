from pandastack import Sandbox

# Persistent sandbox survives until you kill it (set a TTL as a backstop).
sbx = Sandbox.create(template="code-interpreter", persistent=True)
try:
    # Cell 1: load + cache a dataframe to disk.
    sbx.filesystem.write("/workspace/c1.py", (
        "import pandas as pd\n"
        "df = pd.DataFrame({'x': range(1000)})\n"
        "df['y'] = df.x ** 2\n"
        "df.to_parquet('/workspace/state.parquet')\n"
        "print('rows:', len(df))\n"
    ))
    print(sbx.exec("python3 /workspace/c1.py", timeout_seconds=30).stdout)

    # Cell 2: reuse the cached state from cell 1.
    sbx.filesystem.write("/workspace/c2.py", (
        "import pandas as pd\n"
        "df = pd.read_parquet('/workspace/state.parquet')\n"
        "print('max y:', int(df.y.max()))\n"
    ))
    print(sbx.exec("python3 /workspace/c2.py", timeout_seconds=30).stdout)
finally:
    sbx.kill()
