"""A plot from a sandbox, through E2B's own code interpreter SDK, unmodified.

    pip install e2b-code-interpreter
    eval "$(atoll env)"
    python3 examples/sine.py
"""

import argparse
import base64
from pathlib import Path

from e2b_code_interpreter import Sandbox

CODE = """
import matplotlib.pyplot as plt
import numpy as np

# Generate data
x = np.linspace(0, 10, 100)
y = np.sin(x)

# Create plot
plt.figure(figsize=(10, 6))
plt.plot(x, y, 'b-', linewidth=2, label='sin(x)')
plt.xlabel('x')
plt.ylabel('y')
plt.title('Sine Wave')
plt.legend()
plt.grid(True)
plt.show()

print(f"Generated {len(x)} data points")
"""

options = argparse.ArgumentParser(description="Draw a sine wave in a sandbox.")
options.add_argument("--template", default="code-interpreter-v1-slim")
options.add_argument("--output", type=Path, default=Path("sine.png"))
options = options.parse_args()

with Sandbox.create(template=options.template, timeout=60) as sandbox:
    execution = sandbox.run_code(CODE)
    if execution.error:
        raise SystemExit(execution.error.traceback)
    print("".join(execution.logs.stdout), end="")
    [result] = execution.results
    options.output.write_bytes(base64.b64decode(result.png))
    chart = result.chart
    print(f"{chart.title}: {chart.x_label} against {chart.y_label}, {len(chart.elements[0].points)} points")
    print(f"saved {options.output}")
