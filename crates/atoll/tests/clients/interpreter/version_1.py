"""What the first version of E2B's code-interpreter SDK for Python does.

It knows servers by their domain alone and sends no token to where code runs.
`INTERPRETER_TEMPLATE` as in `run.py`; prints `ok NAME` for each case, and any
failure ends it.
"""

import asyncio
import base64
import os

from e2b_code_interpreter import AsyncSandbox, Sandbox

TEMPLATE = os.environ["INTERPRETER_TEMPLATE"]
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='up')\nplt.title('Plot')\nplt.show()"


def case(name):
    print(f"ok {name}", flush=True)


def synchronous():
    with Sandbox(template=TEMPLATE, timeout=600, envs={"OF_THE_SANDBOX": "1"}) as sandbox:
        sandbox.run_code("kept = 1")
        execution = sandbox.run_code("kept += 1; kept")
        assert (execution.text, execution.error) == ("2", None), execution
        case("state")

        lines = []
        execution = sandbox.run_code("print('out')\n1 / 0", on_stdout=lambda message: lines.append(message.line))
        assert lines == ["out\n"] == execution.logs.stdout, execution
        error = execution.error
        assert (error.name, error.value) == ("ZeroDivisionError", "division by zero"), error
        assert "1 / 0" in error.traceback, error
        case("output and errors")

        (result,) = sandbox.run_code(PLOT).results
        assert base64.b64decode(result.png).startswith(b"\x89PNG")
        assert (result.chart.type.value, result.chart.title) == ("line", "Plot"), result.chart
        assert [tuple(point) for point in result.chart.elements[0].points] == [(1, 3), (2, 4)], result.chart
        case("charts")

        context = sandbox.create_code_context(cwd="/tmp")
        assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
        assert sandbox.run_code("kept", context=context).error.name == "NameError"
        case("contexts")

        code = "import os; os.environ['OF_THE_SANDBOX'] + os.environ['OF_THE_CELL']"
        assert sandbox.run_code(code, envs={"OF_THE_CELL": "2"}).text == "12"
        case("variables")

        execution = sandbox.run_code("console.log(await Promise.resolve(42))", language="javascript")
        assert execution.logs.stdout == ["42\n"], execution
        case("javascript")


async def asynchronous():
    sandbox = await AsyncSandbox.create(template=TEMPLATE, timeout=600)
    try:
        results = []
        execution = await sandbox.run_code("6 * 7", on_result=lambda result: results.append(result.text))
        assert (execution.text, results) == ("42", ["42"]), execution
    finally:
        await sandbox.kill()
    case("asynchronous")


synchronous()
asyncio.run(asynchronous())
