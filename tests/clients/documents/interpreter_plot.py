from pandastack import Sandbox

plot_code = """
import matplotlib
matplotlib.use("Agg")  # headless backend, no display needed
import matplotlib.pyplot as plt
import numpy as np

x = np.linspace(0, 4 * np.pi, 400)
plt.figure(figsize=(8, 4))
plt.plot(x, np.sin(x), label="sin")
plt.plot(x, np.cos(x), label="cos")
plt.legend(); plt.title("trig")
plt.savefig("/workspace/plot.png", dpi=120, bbox_inches="tight")
print("wrote /workspace/plot.png")
"""

with Sandbox.create(template="code-interpreter", ttl_seconds=300) as sbx:
    sbx.filesystem.write("/workspace/plot.py", plot_code)
    result = sbx.exec("python3 /workspace/plot.py", timeout_seconds=60)
    assert result.exit_code == 0, result.stderr

    # Read the generated artifact back as bytes and save it locally.
    png_bytes = sbx.filesystem.read("/workspace/plot.png")
    with open("plot.png", "wb") as f:
        f.write(png_bytes)
    print(f"pulled {len(png_bytes)} bytes")
