"""Results of every kind."""

import base64
import json

from boxes import case_list, run, same

cases, case = case_list()

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def only(execution):
    assert len(execution.results) == 1, execution.results
    return execution.results[0]


@case
def text_loses_one_pair_of_quotes(box):
    same(run(box, "'plain'").text, "plain")
    same(run(box, "\"it's\"").text, "it's")
    same(run(box, "b'bytes'").text, "b'bytes'")
    same(run(box, "\"'twice'\"").text, "'twice'")
    same(run(box, "None"). text, None)


@case
def what_is_displayed_is_not_the_main_result(box):
    execution = run(box, "display(1)\ndisplay(2, 3)\n4")
    same([(result.text, result.is_main_result) for result in execution.results], [("1", False), ("2", False), ("3", False), ("4", True)])
    same(execution.text, "4")


@case
def every_kind_arrives_alone(box):
    kinds = {
        "html": ("text/html", "<b>bold</b>"),
        "markdown": ("text/markdown", "*a*"),
        "svg": ("image/svg+xml", "<svg xmlns='http://www.w3.org/2000/svg'/>"),
        "png": ("image/png", PNG),
        "jpeg": ("image/jpeg", PNG),
        "pdf": ("application/pdf", PNG),
        "latex": ("text/latex", "$x^2$"),
        "json": ("application/json", {"a": [1, None, "\u00fc"]}),
        "javascript": ("application/javascript", "alert(1)"),
    }
    for name, (kind, value) in kinds.items():
        result = only(run(box, f"display({{{kind!r}: {value!r}}}, raw=True)"))
        same((list(result.formats()), getattr(result, name)), ([name], value))
        same(result.is_main_result, False)


@case
def objects_of_ipython_are_of_their_kind(box):
    result = only(run(box, "from IPython.display import HTML\nHTML('<i>x</i>')"))
    same((result.html, result.is_main_result), ("<i>x</i>", True))
    assert "IPython.core.display.HTML" in result.text
    same(only(run(box, "from IPython.display import Markdown\nMarkdown('# x')")).markdown, "# x")
    same(only(run(box, "from IPython.display import Latex\nLatex('$y$')")).latex, "$y$")
    assert "alert(2)" in only(run(box, "from IPython.display import Javascript\nJavascript('alert(2)')")).javascript
    assert "<svg" in only(run(box, "from IPython.display import SVG\nSVG('<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>')")).svg


@case
def other_kinds_are_extra(box):
    result = only(run(box, "display({'x-own/kind': {'k': [1, 2]}, 'text/plain': 't'}, raw=True)"))
    same((result.extra, result.text), ({"x-own/kind": {"k": [1, 2]}}, "t"))


@case
def an_object_may_have_many_kinds(box):
    code = """
class Both:
    def _repr_html_(self): return "<p>both</p>"
    def _repr_latex_(self): return "$b$"
    def __repr__(self): return "both"
Both()
"""
    result = only(run(box, code))
    same((result.text, result.html, result.latex), ("both", "<p>both</p>", "$b$"))
    same(set(result.formats()), {"text", "html", "latex"})


@case
def lists_and_dictionaries_are_json_too(box):
    result = only(run(box, "{'a': [1, 2.5, None, True], 'b': {'c': '\u00fc'}}"))
    same(result.json, {"a": [1, 2.5, None, True], "b": {"c": "\u00fc"}})
    same(result.text, "{'a': [1, 2.5, None, True], 'b': {'c': '\u00fc'}}")
    same(only(run(box, "[1, [2, float('nan')]]")).json, [1, [2, None]])
    same(only(run(box, "import numpy\n{'n': numpy.int64(3), 'a': numpy.arange(3)}")).json, {"n": 3, "a": [0, 1, 2]})
    assert only(run(box, "[object()]")).json is None
    assert only(run(box, "(1, 2)")).json is None


@case
def long_sequences_are_not_cut(box):
    same(json.loads(run(box, "list(range(5000))").text), list(range(5000)))


@case
def data_frames_are_data(box):
    code = """
import pandas
pandas.DataFrame({"n": [1, 2], "f": [0.5, float("nan")], "s": ["\u00fc", None], "t": pandas.to_datetime(["2026-01-02 03:04:05", None])})
"""
    result = only(run(box, code))
    same(
        result.data,
        {"n": [1, 2], "f": [0.5, None], "s": ["\u00fc", None], "t": ["2026-01-02T03:04:05", None]},
    )
    assert "<table" in result.html and "\u00fc" in result.text
    same(set(result.formats()), {"text", "html", "data"})


@case
def images_are_shown(box):
    run(box, "from PIL import Image\nimage = Image.new('RGB', (4, 3), 'red')")
    for code in ("image", "image.show()", "image.save('red.png')"):
        result = only(run(box, code))
        assert base64.b64decode(result.png).startswith(b"\x89PNG"), code
        same(result.is_main_result, code == "image")
    assert bytes(box.files.read("/home/user/red.png", format="bytes")).startswith(b"\x89PNG")


@case
def figures_are_shown(box):
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    result = only(run(box, code))
    assert base64.b64decode(result.png).startswith(b"\x89PNG")
    same((result.is_main_result, result.chart.type.value), (False, "line"))
    # Also without being asked to, at the end of the cell; and each of them.
    execution = run(box, "plt.figure(); plt.plot([1]); plt.figure(); plt.bar(['a'], [1]); None")
    same([result.chart.type.value for result in execution.results], ["line", "bar"])
    # As the value of a cell, it is the main result.
    execution = run(box, "figure = plt.figure(); figure.add_subplot().plot([1]); plt.close(figure)\nfigure")
    same([(bool(result.png), result.is_main_result) for result in execution.results], [(True, True)])


@case
def what_is_closed_or_saved_is_not_shown(box):
    execution = run(box, "plt.figure(); plt.plot([1]); plt.savefig('saved.png'); plt.close()")
    same(execution.results, [])
    assert bytes(box.files.read("/home/user/saved.png", format="bytes")).startswith(b"\x89PNG")


@case
def a_broken_representation_is_told_and_the_others_are_there(box):
    code = """
class Broken:
    def _repr_html_(self): raise RuntimeError("no html")
    def __repr__(self): return "still text"
Broken()
"""
    execution = box.run_code(code)
    result = only(execution)
    same((result.text, result.html), ("still text", None))
    same((execution.error.name, execution.error.value), ("RuntimeError", "no html"))


@case
def a_large_result_arrives_whole(box):
    text = run(box, "'x' * 2_000_000").text
    same((len(text), set(text)), (2_000_000, {"x"}))
