"""What `charts.py` says of figures. Run by `test_hooks.py`, in a shell with hooks."""

import datetime

import test_hooks as runner

cases = []


def case(draw):
    """A function that draws is a case: it gives what the chart must be."""

    def work():
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot

        pyplot.close("all")
        expected = draw(pyplot)
        chart = runner.bundle(pyplot.gcf()).get("e2b/chart")
        for key, value in expected.items():
            assert chart is not None and key in chart, f"{key} is missing in {chart}"
            runner.same(chart[key], value)
        if expected.get("type") in KEYS:
            runner.same(set(chart), KEYS[expected["type"]])
        if not expected:
            runner.same(chart, {})

    work.__name__ = draw.__name__
    cases.append(work)
    return draw


PLAIN = {"type", "title", "elements"}
LABELS = PLAIN | {"x_label", "y_label", "x_unit", "y_unit"}
TICKS = LABELS | {f"{side}_{name}" for side in "xy" for name in ("ticks", "tick_labels", "scale")}
KEYS = {
    "line": TICKS,
    "scatter": TICKS,
    "bar": LABELS,
    "pie": PLAIN,
    "box_and_whisker": LABELS,
    "superchart": PLAIN,
    "unknown": PLAIN,
}


@case
def lines_with_labels_units_and_ticks(pyplot):
    pyplot.plot([1, 2, 3], [4, 5, 6])
    pyplot.plot([1, 2, 3], [1, 2, 3], label="named")
    pyplot.xlabel("Time (s)")
    pyplot.ylabel("Speed [m/s]")
    pyplot.title("Two")
    pyplot.xticks([1, 2, 3])
    pyplot.grid(True)
    pyplot.axhline(2)
    pyplot.axvline(2)
    return {
        "type": "line",
        "title": "Two",
        "x_label": "Time (s)",
        "x_unit": "s",
        "y_label": "Speed [m/s]",
        "y_unit": "m/s",
        "x_ticks": [1.0, 2.0, 3.0],
        "x_tick_labels": ["1", "2", "3"],
        "x_scale": "linear",
        "y_scale": "linear",
        "elements": [
            {"label": "Line 0", "points": [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]},
            {"label": "named", "points": [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]},
        ],
    }


@case
def lines_without_words(pyplot):
    pyplot.plot([0, 1], [0, 1])
    return {"type": "line", "title": None, "x_label": None, "y_label": None, "x_unit": None, "y_unit": None}


@case
def what_is_no_number_in_a_line_is_null(pyplot):
    pyplot.plot([1, 2, 3], [1, float("nan"), float("inf")])
    return {"type": "line", "elements": [{"label": "Line 0", "points": [[1.0, 1.0], [2.0, None], [3.0, None]]}]}


@case
def lines_over_dates(pyplot):
    days = [datetime.date(2023, 9, 1) + datetime.timedelta(days=number) for number in range(2)]
    pyplot.plot(days, [1, 2])
    pyplot.xticks(days)
    return {
        "type": "line",
        "x_scale": "datetime",
        "x_ticks": ["2023-09-01T00:00:00+00:00", "2023-09-02T00:00:00+00:00"],
        "elements": [{"label": "Line 0", "points": [["2023-09-01", 1.0], ["2023-09-02", 2.0]]}],
    }


@case
def lines_over_dates_of_numpy_and_pandas(pyplot):
    import numpy
    import pandas

    pyplot.plot(numpy.array(["2023-09-01", "NaT"], dtype="datetime64[s]"), [1, 2])
    pyplot.plot(pandas.to_datetime(["2023-09-01 10:00", "2023-09-02 00:00"]), [3, 4])
    return {
        "type": "line",
        "x_scale": "datetime",
        "elements": [
            {"label": "Line 0", "points": [["2023-09-01T00:00:00", 1.0], [None, 2.0]]},
            {"label": "Line 1", "points": [["2023-09-01T10:00:00", 3.0], ["2023-09-02T00:00:00", 4.0]]},
        ],
    }


@case
def lines_that_pandas_draws(pyplot):
    import pandas

    frame = pandas.DataFrame({"v": [1, 2, 3]}, index=pandas.date_range("2023-09-01", periods=3))
    frame.plot(ax=pyplot.gca())
    return {
        "type": "line",
        "x_scale": "datetime",
        "elements": [
            {
                "label": "v",
                "points": [
                    ["2023-09-01T00:00:00", 1.0],
                    ["2023-09-02T00:00:00", 2.0],
                    ["2023-09-03T00:00:00", 3.0],
                ],
            }
        ],
    }


@case
def lines_over_names(pyplot):
    pyplot.plot(["a", "b"], [1, 2])
    return {
        "type": "line",
        "x_scale": "categorical",
        "x_tick_labels": ["a", "b"],
        "elements": [{"label": "Line 0", "points": [["a", 1.0], ["b", 2.0]]}],
    }


@case
def scales_have_names(pyplot):
    pyplot.plot([1, 2], [1, 2])
    pyplot.xscale("log")
    pyplot.yscale("symlog")
    return {"type": "line", "x_scale": "log", "y_scale": "symlog"}


@case
def scales_of_ones_own_are_linear_to_others(pyplot):
    pyplot.plot([0.2, 0.8], [1, 2])
    pyplot.xscale("logit")
    pyplot.yscale("function", functions=(lambda y: y, lambda y: y))
    return {"type": "line", "x_scale": "logit", "y_scale": "function"}


@case
def scattered_points(pyplot):
    pyplot.scatter([1, 2], [3, 4], label="one")
    pyplot.scatter([5], [6], label="two")
    return {
        "type": "scatter",
        "x_scale": "linear",
        "elements": [
            {"label": "one", "points": [[1.0, 3.0], [2.0, 4.0]]},
            {"label": "two", "points": [[5.0, 6.0]]},
        ],
    }


@case
def scattered_points_over_dates_and_names(pyplot):
    pyplot.scatter([datetime.datetime(2023, 9, 1, 12)], ["high"], label="one")
    return {
        "type": "scatter",
        "x_scale": "datetime",
        "y_scale": "categorical",
        "elements": [{"label": "one", "points": [["2023-09-01T12:00:00+00:00", "high"]]}],
    }


@case
def upright_bars(pyplot):
    pyplot.bar(["A", "B"], [1, 2])
    pyplot.xlabel("Who")
    pyplot.ylabel("How much (kg)")
    return {
        "type": "bar",
        "x_label": "Who",
        "x_unit": None,
        "y_label": "How much (kg)",
        "y_unit": "kg",
        "elements": [
            {"label": "A", "group": "Group 0", "value": 1.0},
            {"label": "B", "group": "Group 0", "value": 2.0},
        ],
    }


@case
def lying_bars_have_their_axes_swapped(pyplot):
    pyplot.barh(["A", "B"], [1, 1])
    pyplot.xlabel("How much (kg)")
    pyplot.ylabel("Who")
    return {
        "type": "bar",
        "x_label": "Who",
        "y_label": "How much (kg)",
        "x_unit": None,
        "y_unit": "kg",
        "elements": [
            {"label": "A", "group": "Group 0", "value": 1.0},
            {"label": "B", "group": "Group 0", "value": 1.0},
        ],
    }


@case
def bars_side_by_side(pyplot):
    for number, name in enumerate(["one", "two", "three"]):
        pyplot.bar([0 + number / 4, 1 + number / 4], [number, 10 + number], 0.25, label=name)
    pyplot.xticks([0.25, 1.25], ["left", "right"])
    return {
        "type": "bar",
        "elements": [
            {"label": place, "group": group, "value": float(value + number)}
            for number, group in enumerate(["one", "two", "three"])
            for place, value in (("left", 0), ("right", 10))
        ],
    }


@case
def equal_bars_are_bars(pyplot):
    pyplot.bar(["A", "B"], [2, 2])
    return {
        "type": "bar",
        "elements": [
            {"label": "A", "group": "Group 0", "value": 2.0},
            {"label": "B", "group": "Group 0", "value": 2.0},
        ],
    }


@case
def bars_at_numbers_are_named_by_them(pyplot):
    pyplot.bar([10, 20], [1, 2])
    return {
        "type": "bar",
        "elements": [
            {"label": "10", "group": "Group 0", "value": 1.0},
            {"label": "20", "group": "Group 0", "value": 2.0},
        ],
    }


@case
def histograms_are_bars(pyplot):
    pyplot.hist([0, 0, 1, 2], bins=[0, 1, 2])
    return {
        "type": "bar",
        "elements": [
            {"label": "0.5", "group": "Group 0", "value": 2.0},
            {"label": "1.5", "group": "Group 0", "value": 2.0},
        ],
    }


@case
def pies(pyplot):
    pyplot.pie([1, 3], labels=["a", "b"], radius=2, autopct="%d")
    pyplot.title("Pie")
    return {
        "type": "pie",
        "title": "Pie",
        "elements": [
            {"label": "a", "angle": 90.0, "radius": 2.0},
            {"label": "b", "angle": 270.0, "radius": 2.0},
        ],
    }


BOXES = [
    {"min": 1.0, "first_quartile": 2.25, "median": 3.5, "third_quartile": 4.75, "max": 5.0, "outliers": [20.0]},
    {"min": 2.0, "first_quartile": 3.0, "median": 4.0, "third_quartile": 5.0, "max": 6.0, "outliers": []},
]
BOXED = [[1, 2, 3, 4, 5, 20], [2, 3, 4, 5, 6]]


@case
def boxes(pyplot):
    pyplot.boxplot(BOXED, tick_labels=["A", "B"])
    pyplot.ylabel("Height [m]")
    return {
        "type": "box_and_whisker",
        "y_label": "Height [m]",
        "y_unit": "m",
        "elements": [{"label": name} | box for name, box in zip("AB", BOXES)],
    }


@case
def lying_notched_filled_boxes(pyplot):
    pyplot.boxplot(BOXED, orientation="horizontal", notch=True, patch_artist=True, tick_labels=["A", "B"])
    pyplot.xlabel("Height [m]")
    return {
        "type": "box_and_whisker",
        "x_label": None,
        "y_label": "Height [m]",
        "elements": [{"label": name} | box for name, box in zip("AB", BOXES)],
    }


@case
def boxes_that_were_cleared_are_gone(pyplot):
    pyplot.boxplot(BOXED)
    pyplot.cla()
    pyplot.plot([1, 2], [1, 2])
    return {"type": "line", "elements": [{"label": "Line 0", "points": [[1.0, 1.0], [2.0, 2.0]]}]}


@case
def more_axes_are_a_superchart(pyplot):
    figure, (left, right) = pyplot.subplots(1, 2)
    left.pie([1, 1], labels=["a", "b"])
    left.set_title("Left")
    right.imshow([[1, 2]])
    figure.suptitle("Both")
    return {
        "type": "superchart",
        "title": "Both",
        "elements": [
            {
                "type": "pie",
                "title": "Left",
                "elements": [
                    {"label": "a", "angle": 180.0, "radius": 1.0},
                    {"label": "b", "angle": 180.0, "radius": 1.0},
                ],
            },
            {"type": "unknown", "title": None, "elements": []},
        ],
    }


@case
def an_empty_figure_has_no_chart(pyplot):
    pyplot.figure()
    return {}


@case
def empty_axes_have_no_chart(pyplot):
    pyplot.subplots()
    return {}


@case
def pictures_are_unknown(pyplot):
    pyplot.imshow([[1, 2], [3, 4]])
    pyplot.title("Picture")
    return {"type": "unknown", "title": "Picture", "elements": []}


@case
def shapes_are_unknown(pyplot):
    pyplot.gca().add_patch(pyplot.Circle((0, 0), 1))
    return {"type": "unknown", "elements": []}


@case
def a_mixture_is_unknown(pyplot):
    pyplot.bar([1, 2], [3, 4])
    pyplot.plot([1, 2, 3], [3, 4, 5])
    return {"type": "unknown", "elements": []}


@case
def space_is_unknown(pyplot):
    pyplot.figure().add_subplot(projection="3d").scatter([1], [2], [3])
    return {"type": "unknown", "elements": []}


def too_many_points_have_no_chart():
    from matplotlib import pyplot

    pyplot.close("all")
    pyplot.plot(range(100_001))
    data = runner.bundle(pyplot.gcf())
    assert "e2b/chart" not in data, data["e2b/chart"]["type"]
    pyplot.close("all")
    pyplot.plot(range(100_000))
    runner.same(len(runner.bundle(pyplot.gcf())["e2b/chart"]["elements"][0]["points"]), 100_000)


def figures_that_lie_about_themselves_have_no_chart():
    from matplotlib import pyplot

    pyplot.close("all")
    line = pyplot.plot([1, 2], [3, 4])[0]
    line.get_label = lambda: 1 / 0
    assert "e2b/chart" not in runner.bundle(pyplot.gcf())


def what_is_shown_stays_as_it_is():
    """Reading a figure changes nothing in it."""
    import io

    from matplotlib import pyplot

    def drawn(figure):
        memory = io.BytesIO()
        figure.savefig(memory, format="raw")
        return memory.getvalue()

    pyplot.close("all")
    figure, (left, right) = pyplot.subplots(1, 2)
    left.plot([1, 2, 3], [1, 4, 9], label="a")
    left.legend()
    right.boxplot(BOXED)
    before = drawn(figure)
    runner.bundle(figure)
    assert drawn(figure) == before


def labels_of_ticks_are_those_that_are_drawn():
    import charts
    import test_figures
    from matplotlib import pyplot, ticker

    def others():
        _, (above, below) = pyplot.subplots(2, sharex=True)
        above.plot([1, 2])
        below.plot([1, 2])
        below.tick_params(labelright=True, labelbottom=False)
        # One that gives what is not text.
        below.yaxis.set_major_formatter(ticker.FuncFormatter(lambda place, _: place or None))
        yield "shared", above.figure
        _, axes = pyplot.subplots()
        axes.plot([1e9, 1e9 + 1], [1, 2])
        axes.set_yticks([1, 2], ["low", "high"])
        yield "fixed", axes.figure

    for name, figure in [*test_figures.figures(), *others()]:
        for axes in figure.get_axes():
            for axis in (axes.xaxis, axes.yaxis):
                said = charts._tick_labels(axis, axis.get_majorticklocs())
                runner.same((name, said), (name, [label.get_text() for label in axis.get_majorticklabels()]))
    pyplot.close("all")


cases += [
    labels_of_ticks_are_those_that_are_drawn,
    too_many_points_have_no_chart,
    figures_that_lie_about_themselves_have_no_chart,
    what_is_shown_stays_as_it_is,
]
