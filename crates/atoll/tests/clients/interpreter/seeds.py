"""What people show first: the examples of E2B's users that need no internet."""

import base64
import json

from boxes import case_list, fail, printed, run, same

cases, case = case_list()


@case
def the_sine_plot(box):
    code = """
import numpy as np
import matplotlib.pyplot as plt

x = np.linspace(0, 10, 100)
y = np.sin(x)

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
    execution = run(box, code)
    same(printed(execution), "Generated 100 data points\n")
    (result,) = execution.results
    assert base64.b64decode(result.png).startswith(b"\x89PNG")
    chart = result.chart
    same((chart.type.value, chart.title, chart.x_label, chart.y_label), ("line", "Sine Wave", "x", "y"))
    (line,) = chart.elements
    same((line.label, len(line.points), tuple(line.points[0])), ("sin(x)", 100, (0, 0)))
    assert all(abs(y) <= 1 for _, y in line.points)


@case
def javascript_writes_a_file(box):
    code = """
const fs = require('fs');
const data = { message: 'Hello from E2B!' };
fs.writeFileSync('output.json', JSON.stringify(data, null, 2));
console.log('File written successfully');
"""
    same(printed(run(box, code, language="javascript")), "File written successfully\n")
    same(json.loads(box.files.read("/home/user/output.json")), {"message": "Hello from E2B!"})


@case
def a_package_is_installed_and_imported_at_once(box):
    # A wheel that is made on the spot: no index is needed.
    code = """
import zipfile
information = "atoll_probe-1.0.dist-info"
with zipfile.ZipFile("atoll_probe-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("atoll_probe.py", "answer = 42")
    wheel.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\\nName: atoll-probe\\nVersion: 1.0\\n")
    wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(f"{information}/RECORD", "")
"""
    run(box, code)
    same(fail(box, "import atoll_probe").name, "ModuleNotFoundError")
    installed = box.commands.run("pip install --no-index ./atoll_probe-1.0-py3-none-any.whl")
    assert "Successfully installed" in installed.stdout, installed
    same(run(box, "import atoll_probe; atoll_probe.answer").text, "42")
    # Taken away and installed from a cell.
    run(box, "!pip uninstall --yes atoll-probe")
    run(box, "%pip install --no-index ./atoll_probe-1.0-py3-none-any.whl")
    same(printed(run(box, "!python3 -c 'import atoll_probe; print(atoll_probe.answer)'")).strip(), "42")


@case
def a_node_package_is_installed_and_imported_at_once(box):
    box.files.write("/home/user/probe/package.json", json.dumps({"name": "atoll-probe", "version": "1.0.0", "main": "index.js"}))
    box.files.write("/home/user/probe/index.js", "module.exports = (x) => x % 2 === 1")
    same(fail(box, "import isOdd from 'atoll-probe'", language="javascript").name, "Error")
    box.commands.run("npm install --offline --no-audit --no-fund --install-links ./probe")
    same(run(box, "import isOdd from 'atoll-probe'\nisOdd(3)", language="javascript").text, "true")
    same(run(box, "require('atoll-probe')(2)", language="javascript").text, "false")


@case(least="slim")
def the_iris_analysis(box):
    code = """
import pandas as pd
from sklearn.datasets import load_iris
iris = load_iris(as_frame=True)
frame = iris.frame
frame["species"] = frame["target"].map(dict(enumerate(iris.target_names)))
summary = frame.groupby("species")[["petal length (cm)"]].mean().reset_index()
summary
"""
    (result,) = run(box, code).results
    same(result.data["species"], ["setosa", "versicolor", "virginica"])
    same([round(value, 3) for value in result.data["petal length (cm)"]], [1.462, 4.26, 5.552])
    code = """
import seaborn as sns, matplotlib.pyplot as plt
sns.boxplot(data=frame, x="species", y="petal length (cm)")
plt.title("Petals")
plt.show()
"""
    chart = next(result.chart for result in run(box, code).results if result.chart)
    same((chart.type.value, chart.title, chart.y_unit), ("box_and_whisker", "Petals", "cm"))
    same([(one.label, one.median) for one in chart.elements], [("setosa", 1.5), ("versicolor", 4.35), ("virginica", 5.55)])


@case(least="slim")
def the_random_forest(box):
    code = """
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
X, y = load_iris(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=42)
model = RandomForestClassifier(n_estimators=100, random_state=42).fit(X_train, y_train)
accuracy_score(y_test, model.predict(X_test))
"""
    assert float(run(box, code).text) > 0.9


@case(least="slim")
def packages_that_agents_expect(box):
    names = "numpy pandas matplotlib scipy sklearn seaborn plotly requests bs4 PIL openpyxl sympy orjson"
    for name in names.split():
        run(box, f"import {name}")
    same(run(box, "import sympy; sympy.integrate(sympy.Symbol('x'))").results[0].latex, "$\\displaystyle \\frac{x^{2}}{2}$")
    result = run(box, "import plotly.express as px\npx.bar(x=['a'], y=[1])").results[0]
    assert result.html or result.extra or result.json, result.formats()


@case(least="full")
def packages_that_e2b_has(box):
    names = "aiohttp bokeh gensim imageio joblib librosa nltk numba cv2 kaleido pytest docx pytz skimage soundfile spacy textblob tornado urllib3 xarray xlrd"
    for name in names.split():
        run(box, f"import {name}")
