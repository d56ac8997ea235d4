from pandastack import Sandbox

# A throwaway interpreter for one untrusted snippet.
user_code = """
import pandas as pd
df = pd.DataFrame({"city": ["NYC", "SF", "LA"], "pop_m": [8.3, 0.87, 3.9]})
print(df.sort_values("pop_m", ascending=False).to_string(index=False))
print("total:", df.pop_m.sum())
"""

with Sandbox.create(template="code-interpreter", ttl_seconds=300) as sbx:
    # Write the model-generated code to a file in the guest, then run it.
    sbx.filesystem.write("/workspace/cell.py", user_code)
    result = sbx.exec("python3 /workspace/cell.py", timeout_seconds=30)

    print("exit:", result.exit_code)
    print("stdout:\n", result.stdout)
    if result.stderr:
        print("stderr:\n", result.stderr)
# sandbox is destroyed here
