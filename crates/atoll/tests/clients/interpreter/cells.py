"""Cells: what they print, what they give, how they fail, what stays."""

import threading

from boxes import BOUND_S, case_list, complained, fail, printed, run, same

cases, case = case_list()


@case
def an_expression_has_a_result(box):
    execution = run(box, "1 + 1")
    same(execution.text, "2")
    same([(result.is_main_result, list(result.formats())) for result in execution.results], [(True, ["text"])])
    same((execution.logs.stdout, execution.logs.stderr), ([], []))


@case
def a_statement_has_none(box):
    execution = run(box, "nothing = 1")
    same((execution.text, execution.results), (None, []))


@case
def names_stay(box):
    run(box, "kept = [1]")
    run(box, "def more():\n    kept.append(2)\n    return kept")
    same(run(box, "more()").text, "[1, 2]")


@case
def executions_are_counted(box):
    context = box.create_code_context()
    counts = [run(box, code, context=context).execution_count for code in ("1", "x = 2", "x")]
    same(counts, [1, 2, 3])


@case
def output_and_complaints_are_apart(box):
    execution = run(box, "import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('out again')")
    same((printed(execution), complained(execution)), ("out\nout again\n", "err\n"))


@case
def output_is_told_while_the_cell_runs(box):
    box.commands.run("rm -f /home/user/go-on")
    told, seen = threading.Event(), []

    def on_stdout(message):
        seen.append(message.line)
        assert message.timestamp
        told.set()

    code = """
import os, time
print("waiting", flush=True)
while not os.path.exists("/home/user/go-on"):
    time.sleep(0.01)
print("gone on")
"""
    done = []
    thread = threading.Thread(target=lambda: done.append(run(box, code, on_stdout=on_stdout)))
    thread.start()
    assert told.wait(BOUND_S), "nothing was told before the cell ended"
    same((seen, done), (["waiting\n"], []))
    box.files.write("/home/user/go-on", "")
    thread.join(BOUND_S)
    same(("".join(seen), printed(done[0])), ("waiting\ngone on\n", "waiting\ngone on\n"))


@case
def callbacks_get_everything(box):
    results, errors, complaints = [], [], []
    execution = box.run_code(
        "import sys\nprint('e', file=sys.stderr)\ndisplay('shown')\nraise ValueError('no')",
        on_result=results.append,
        on_error=errors.append,
        on_stderr=complaints.append,
    )
    same([result.text for result in results], ["shown"])
    same([(error.name, error.value) for error in errors], [("ValueError", "no")])
    same("".join(message.line for message in complaints), "e\n")
    assert all(message.error for message in complaints)
    same((execution.error.name, len(execution.results)), ("ValueError", 1))


@case
def every_character_arrives(box):
    text = "".join(chr(code) for code in [*range(1, 0xD800, 7), *range(0xE000, 0x11000, 11), *range(0x1F300, 0x1F600)])
    execution = run(box, f"text = {text!r}\nprint(text, end='')\ntext")
    same(printed(execution), text)
    same(run(box, "'\u00fc' + \"'\"").text, "\u00fc'")


@case
def a_lot_of_output_arrives_whole(box):
    execution = run(box, "for number in range(100_000): print(f'line {number}')")
    same(printed(execution), "".join(f"line {number}\n" for number in range(100_000)))


@case
def an_error_says_what_why_and_where(box):
    error = fail(box, "def divide(by):\n    return 1 / by\n\ndivide(0)")
    same((error.name, error.value), ("ZeroDivisionError", "division by zero"))
    assert "divide(0)" in error.traceback and "return 1 / by" in error.traceback, error.traceback
    assert "\x1b" not in error.traceback, "there are colours"
    same(run(box, "'alive'").text, "alive")


@case
def what_was_printed_before_an_error_is_there(box):
    execution = box.run_code("print('before')\n1 / 0\nprint('after')")
    same((printed(execution), execution.error.name), ("before\n", "ZeroDivisionError"))


@case
def errors_of_every_kind_have_names(box):
    same(fail(box, "if True print(1)").name, "SyntaxError")
    same(fail(box, "nowhere").name, "NameError")
    same(fail(box, "import nowhere_at_all").name, "ModuleNotFoundError")
    same(fail(box, "class Own(Exception): pass\nraise Own('mine')").value, "mine")
    same(fail(box, "raise KeyboardInterrupt").name, "KeyboardInterrupt")
    same(fail(box, "def deeper(): return deeper()\ndeeper()").name, "RecursionError")
    same(run(box, "'alive'").text, "alive")


@case
def asking_for_input_fails_at_once(box):
    same(fail(box, "input('? ')").name, "StdinNotImplementedError")


@case
def cells_may_wait_at_the_top(box):
    same(run(box, "import asyncio\nawait asyncio.sleep(0)\nawait asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))").text, "[1, 2]")


@case
def commands_of_the_shell_work_in_cells(box):
    same(printed(run(box, "!echo from the shell")).split(), ["from", "the", "shell"])
    same(printed(run(box, "%%bash\necho $((6 * 7))")).strip(), "42")
    run(box, "%env CELL_MAGIC=1")
    same(run(box, "import os; os.environ['CELL_MAGIC']").text, "1")


@case
def an_empty_cell_is_fine(box):
    for code in ("", "\n\n", "# nothing"):
        same((run(box, code).results, run(box, code).text), ([], None))


@case
def files_are_those_of_the_sandbox(box):
    run(box, "with open('from-a-cell.txt', 'w') as file: file.write('cell')")
    same(box.files.read("/home/user/from-a-cell.txt"), "cell")
    box.files.write("/home/user/for-a-cell.txt", "file")
    same(run(box, "open('for-a-cell.txt').read()").text, "file")
    same(box.commands.run("stat -c %U /home/user/from-a-cell.txt").stdout.strip(), "user")
