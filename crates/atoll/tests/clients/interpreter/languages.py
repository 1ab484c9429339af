"""The other languages."""

from boxes import ENVIRONMENT, TooLate, case_list, complained, fail, printed, raised, run, same

cases, case = case_list()


def javascript(box, code, **options):
    return run(box, code, language="javascript", **options)


@case
def javascript_prints_and_gives(box):
    execution = javascript(box, "console.log('Hello, World!')\nconsole.error('oh')")
    same((printed(execution), complained(execution)), ("Hello, World!\n", "oh\n"))
    same(javascript(box, "6 * 7").text, "42")
    same(javascript(box, "'text'").text, "text")
    same(javascript(box, "({ a: 1, b: [1, 2] })").text, "{ a: 1, b: [ 1, 2 ] }")
    same(javascript(box, "undefined").results, [])


@case
def javascript_keeps_names_and_lets_them_be_declared_again(box):
    javascript(box, "const kept = 1; let other = 2; class Kept {} ; function f() { return kept + other }")
    same(javascript(box, "f()").text, "3")
    same(javascript(box, "const kept = 10; let f = () => kept; f()").text, "10")


@case
def javascript_waits_at_the_top(box):
    same(javascript(box, "async function later() { return 'later' }\nawait later()").text, "later")
    same(javascript(box, "const waited = await new Promise(done => setTimeout(() => done(5), 1));\nwaited").text, "5")
    same(javascript(box, "waited").text, "5")


@case
def javascript_imports_and_requires(box):
    same(javascript(box, "import os from 'os'\nimport { join } from 'node:path'\njoin(os.EOL.trim() + 'a', 'b')").text, "a/b")
    same(javascript(box, "const fs = require('fs'); fs.existsSync('/etc/passwd')").text, "true")
    same(javascript(box, "const crypto = require('crypto'); typeof crypto.createHash").text, "function")
    same(javascript(box, "(await import('url')).default === require('url')").text, "true")
    box.files.write("/home/user/own.mjs", "export const own = 'mine'; export default 7;")
    same(javascript(box, "import seven, { own } from './own.mjs'\n`${own} ${seven}`").text, "mine 7")


@case
def javascript_says_what_went_wrong(box):
    error = fail(box, "function broken() { throw new TypeError('bad') }\nbroken()", language="javascript")
    same((error.name, error.value), ("TypeError", "bad"))
    assert "broken" in error.traceback, error.traceback
    same(fail(box, "nowhere", language="javascript").name, "ReferenceError")
    same(fail(box, "const = 3", language="javascript").name, "SyntaxError")
    same(fail(box, "await Promise.reject(new RangeError('far'))", language="javascript").value, "far")
    same(fail(box, "import nothing from 'not-installed'", language="javascript").name, "Error")
    same(javascript(box, "1 + 1").text, "2")


@case
def javascript_shows_other_kinds(box):
    execution = javascript(box, "display.html('<b>x</b>'); display.markdown('*y*'); 'main'")
    same([(one.html, one.markdown, one.text, one.is_main_result) for one in execution.results], [("<b>x</b>", None, None, False), (None, "*y*", None, False), (None, None, "main", True)])


@case
def typescript_is_javascript_with_types(box):
    code = """
interface User { name: string; age?: number }
enum Color { Red = 3 }
type Named = Pick<User, "name">;
const user: User = { name: "Ada" };
function greet<T extends Named>(who: T): string { return `Hello ${who.name}` }
class Point { constructor(public x: number, private y: number = 2) {} }
console.log(greet(user), Color.Red, new Point(1).x as number);
const sum: number = await Promise.resolve<number>(3);
sum!
"""
    for language in ("typescript", "ts"):
        execution = run(box, code, language=language)
        same((printed(execution), execution.text), ("Hello Ada 3 1\n", "3"))
    same(run(box, "sum + 1", language="typescript").text, "4")


@case
def javascript_has_the_environment_and_the_directory(box):
    for name, value in ENVIRONMENT.items():
        same(printed(javascript(box, f"process.stdout.write(process.env.{name})")), value)
    value = "\u00fc'\"$x`\\\n2"
    same(printed(javascript(box, "process.stdout.write(process.env.OF_THE_CELL)", envs={"OF_THE_CELL": value})), value)
    same(javascript(box, "typeof process.env.OF_THE_CELL").text, "undefined")
    same(javascript(box, "process.cwd()").text, "/home/user")
    context = box.create_code_context(language="javascript", cwd="/tmp")
    same(run(box, "process.cwd()", context=context).text, "/tmp")


@case
def javascript_is_interrupted(box):
    context = box.create_code_context(language="javascript")
    run(box, "const kept = 'kept'", context=context)
    for code in ("while (true) {}", "await new Promise(() => {})"):
        raised(TooLate, lambda: box.run_code(code, context=context, timeout=2))
        same(run(box, "kept", context=context).text, "kept")


@case
def javascript_survives_what_nobody_waits_for(box):
    execution = javascript(box, "Promise.reject(new Error('stray'))\nsetTimeout(() => { throw new Error('later') }, 1)\nawait new Promise(done => setTimeout(done, 50))\n'alive'")
    same(execution.text, "alive")
    assert "stray" in complained(execution) and "later" in complained(execution), execution
    same(javascript(box, "1 + 1").text, "2")


def bash(box, code, **options):
    return run(box, code, language="bash", **options)


@case
def bash_prints_and_keeps(box):
    same(printed(bash(box, "echo Hello, World!")).strip(), "Hello, World!")
    bash(box, "kept=7; cd /tmp; greet() { echo \"hi $1\"; }")
    same(printed(bash(box, "echo $((kept * 6)); pwd; greet you")).split("\n")[:3], ["42", "/tmp", "hi you"])


@case
def bash_has_the_environment(box):
    same(printed(bash(box, "echo \"$GLOBAL_ONE\"")).strip(), ENVIRONMENT["GLOBAL_ONE"])
    same(printed(bash(box, "echo \"<$OF_THE_CELL>\"", envs={"OF_THE_CELL": "'a' \"b\" $c"})).strip(), "<'a' \"b\" $c>")
    same(printed(bash(box, "echo \"<$OF_THE_CELL>\"")).strip(), "<>")
    context = box.create_code_context(language="bash", cwd="/tmp")
    same(printed(run(box, "pwd", context=context)).strip(), "/tmp")


def r(box, code, **options):
    """Text of what R shows: its kernel has no main results."""
    return [result.text for result in run(box, code, language="r", **options).results]


@case(least="full")
def r_prints_and_gives(box):
    same(printed(run(box, "cat('Hello, World!')", language="r")), "Hello, World!")
    same(r(box, "6 * 7"), ["[1] 42"])
    same(r(box, "kept <- c(1, 2, 3)"), [])
    same(r(box, "sum(kept)"), ["[1] 6"])
    (version,) = r(box, "as.character(getRversion())")
    assert version >= '[1] "4.2', version
    assert "not found" in fail(box, "nowhere", language="r").value


@case(least="full")
def r_draws_and_makes_tables(box):
    execution = run(box, "plot(1:10)", language="r")
    assert any(result.png or result.svg for result in execution.results), execution
    execution = run(box, "library(ggplot2)\nggplot(data.frame(x = 1:3), aes(x, x)) + geom_point()", language="r")
    assert any(result.png or result.svg for result in execution.results), execution
    result = run(box, "data.frame(a = 1:2, b = c('x', 'y'))", language="r").results[0]
    assert "<table" in result.html and "x" in result.text, result


@case(least="full")
def r_has_the_environment_and_the_directory(box):
    same(r(box, "Sys.getenv('GLOBAL_ONE')"), [f"[1] \"{ENVIRONMENT['GLOBAL_ONE']}\""])
    same(r(box, "Sys.getenv('OF_THE_CELL')", envs={"OF_THE_CELL": "cell"}), ['[1] "cell"'])
    same(r(box, "Sys.getenv('OF_THE_CELL')"), ['[1] ""'])
    same(r(box, "getwd()"), ['[1] "/home/user"'])


@case(least="full")
def java_prints_and_gives(box):
    same(printed(run(box, 'System.out.println("Hello, World!");', language="java")).strip(), "Hello, World!")
    assert "42" in run(box, "6 * 7", language="java").text
    run(box, "int kept = 5; int twice(int x) { return 2 * x; }", language="java")
    assert "10" in run(box, "twice(kept)", language="java").text
    error = fail(box, 'throw new IllegalStateException("bad");', language="java")
    assert "bad" in error.value + error.traceback, error
    error = fail(box, "int x = ;", language="java")
    assert error.traceback, error
    assert "3" in run(box, "1 + 2", language="java").text


@case(least="full")
def java_has_the_environment(box):
    assert "cell" in run(box, 'System.getProperty("OF_THE_CELL")', language="java", envs={"OF_THE_CELL": "cell"}).text
    same(run(box, 'System.getProperty("OF_THE_CELL")', language="java").text, None)
