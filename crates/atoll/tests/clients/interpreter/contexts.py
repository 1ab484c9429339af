"""Contexts, variables of the environment, directories, and cells that take too long."""

import threading

from boxes import ENVIRONMENT, InvalidArgument, NotFound, TooLate, case_list, fail, printed, raised, run, same

cases, case = case_list()


@case
def contexts_do_not_know_each_other(box):
    one, other = box.create_code_context(), box.create_code_context()
    run(box, "mine = 1", context=one)
    same(fail(box, "mine", context=other).name, "NameError")
    same(fail(box, "mine").name, "NameError")
    same(run(box, "mine", context=one).text, "1")


@case
def a_context_says_what_it_is(box):
    context = box.create_code_context(cwd="/tmp", language="python")
    same((context.language, context.cwd), ("python", "/tmp"))
    assert context.id
    same(run(box, "import os; os.getcwd()", context=context).text, "/tmp")
    same(box.create_code_context().cwd, "/home/user")
    same(run(box, "import os; os.getcwd()").text, "/home/user")


@case
def contexts_are_listed_in_their_order(box):
    made = [box.create_code_context(), box.create_code_context(language="javascript")]
    listed = box.list_code_contexts()
    same([one.id for one in listed[-2:]], [one.id for one in made])
    same([one.language for one in listed[-2:]], ["python", "javascript"])
    languages = {one.language for one in listed}
    assert {"python", "javascript"} <= languages, languages


@case
def a_context_that_is_removed_is_gone(box):
    context = box.create_code_context()
    run(box, "1", context=context)
    box.remove_code_context(context)
    assert context.id not in [one.id for one in box.list_code_contexts()]
    raised(NotFound, lambda: box.run_code("1", context=context))
    raised(NotFound, lambda: box.remove_code_context(context))
    raised(NotFound, lambda: box.restart_code_context(context.id))


@case
def a_context_starts_again(box):
    context = box.create_code_context(cwd="/tmp")
    run(box, "left = 1", context=context)
    box.restart_code_context(context)
    same(fail(box, "left", context=context).name, "NameError")
    same(run(box, "import os; os.getcwd()", context=context).text, "/tmp")
    again = [one for one in box.list_code_contexts() if one.id == context.id]
    same([(one.language, one.cwd) for one in again], [("python", "/tmp")])
    box.restart_code_context(context.id)
    same(run(box, "1 + 1", context=context).text, "2")


@case
def a_context_and_a_language_are_one_too_many(box):
    context = box.create_code_context()
    raised(InvalidArgument, lambda: box.run_code("1", context=context, language="python"))


@case
def a_language_that_is_not_there_is_an_error(box):
    error = raised(Exception, lambda: box.run_code("1", language="cobol"))
    assert "cobol" in str(error), error
    error = raised(Exception, lambda: box.create_code_context(language="cobol"))
    assert "cobol" in str(error), error


@case
def cells_of_one_context_wait_for_each_other(box):
    context = box.create_code_context()
    run(box, "order = []", context=context)
    code = "order.append({0})\nimport time\ntime.sleep(0.2)\norder.append({0})"
    threads = [threading.Thread(target=run, args=(box, code.format(number)), kwargs={"context": context}) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    order = run(box, "order", context=context).results[0].json
    same((order[::2], sorted(order)), (order[1::2], [0, 0, 1, 1, 2, 2, 3, 3]))


@case
def cells_of_two_contexts_do_not(box):
    one, other = box.create_code_context(), box.create_code_context()
    box.commands.run("rm -f /home/user/meet-1 /home/user/meet-2")
    code = """
import os, time
open("/home/user/meet-{0}", "w").close()
while not os.path.exists("/home/user/meet-{1}"):
    time.sleep(0.01)
"""
    thread = threading.Thread(target=run, args=(box, code.format(1, 2)), kwargs={"context": one})
    thread.start()
    run(box, code.format(2, 1), context=other)
    thread.join()


@case
def variables_of_the_sandbox_are_there(box):
    for name, value in ENVIRONMENT.items():
        same(run(box, f"import os; print(os.environ[{name!r}], end='')").logs.stdout, [value])
    same(run(box, "import os; print(os.environ['GLOBAL_ONE'], end='')", context=box.create_code_context()).logs.stdout, [ENVIRONMENT["GLOBAL_ONE"]])


@case
def variables_of_a_cell_are_gone_after_it(box):
    value = "of the cell \u00fc 'q' \"d\" \\ $x\nsecond line"
    envs = {"OF_THE_CELL": value, "GLOBAL_ONE": "another"}
    code = "import os; [os.environ.get('OF_THE_CELL'), os.environ['GLOBAL_ONE']]"
    same(run(box, code, envs=envs).results[0].json, [value, "another"])
    same(run(box, code).results[0].json, [None, ENVIRONMENT["GLOBAL_ONE"]])
    # Also after one that failed.
    box.run_code("1 / 0", envs=envs)
    same(run(box, code).results[0].json, [None, ENVIRONMENT["GLOBAL_ONE"]])


@case
def variables_neither_count_nor_print(box):
    context = box.create_code_context()
    first = run(box, "1", context=context, envs={"A": "1"})
    second = run(box, "2", context=context, envs={"A": "2"})
    same((first.execution_count, second.execution_count), (1, 2))
    same((first.logs.stdout, first.logs.stderr, len(first.results)), ([], [], 1))


@case
def a_cell_that_takes_too_long_is_interrupted(box):
    context = box.create_code_context()
    run(box, "kept = 'kept'", context=context)
    for code in ("while True: pass", "import time\ntime.sleep(3600)"):
        raised(TooLate, lambda: box.run_code(code, context=context, timeout=2))
        same(run(box, "kept", context=context).text, "kept")


@case
def a_kernel_that_ends_is_an_error_and_another_one_is_there(box):
    context = box.create_code_context()
    run(box, "lost = 1", context=context)
    for code in ("import os\nos._exit(3)", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"):
        error = fail(box, code, context=context)
        assert error.name and error.value and error.traceback is not None, error
        same(fail(box, "lost", context=context).name, "NameError")
        same(run(box, "1 + 1", context=context).text, "2")


@case
def a_prompt_of_python_is_no_prison(box):
    run(box, "import sys\nsys.stdout.close = lambda: None\nprint('printed')")
    same(printed(run(box, "print('after')")), "after\n")
    same(fail(box, "exit_code = 1\nraise SystemExit(exit_code)").name, "SystemExit")
    same(run(box, "1 + 1").text, "2")
