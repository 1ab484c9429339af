"""Charts of every type, as the SDK reads them."""

from boxes import case_list, run, same

cases, case = case_list()


def chart(box, code):
    execution = run(box, f"import matplotlib.pyplot as plt\nimport datetime\n{code}\nplt.show()")
    found = [result for result in execution.results if result.chart is not None]
    assert len(found) == 1 and found[0].png, execution.results
    return found[0].chart


def labels(chart):
    return (chart.title, chart.x_label, chart.y_label, chart.x_unit, chart.y_unit)


@case
def a_line_chart(box):
    line = chart(
        box,
        "plt.plot([1, 2, 3], [4, 5, 6], label='up')\nplt.plot([1, 2, 3], [3, 2, 1])\n"
        "plt.title('Lines'); plt.xlabel('Time (s)'); plt.ylabel('Speed [m/s]'); plt.xticks([1, 2, 3]); plt.grid()",
    )
    same(line.type.value, "line")
    same(labels(line), ("Lines", "Time (s)", "Speed [m/s]", "s", "m/s"))
    same((line.x_ticks, line.x_tick_labels), ([1, 2, 3], ["1", "2", "3"]))
    same((line.x_scale.value, line.y_scale.value), ("linear", "linear"))
    same(
        [(element.label, [tuple(point) for point in element.points]) for element in line.elements],
        [("up", [(1, 4), (2, 5), (3, 6)]), ("Line 1", [(1, 3), (2, 2), (3, 1)])],
    )


@case
def a_line_chart_over_dates(box):
    line = chart(box, "days = [datetime.date(2023, 9, 1), datetime.date(2023, 9, 2)]\nplt.plot(days, [1, 2]); plt.xticks(days)")
    same(line.x_scale.value, "datetime")
    same(line.x_ticks, ["2023-09-01T00:00:00+00:00", "2023-09-02T00:00:00+00:00"])
    same([tuple(point) for point in line.elements[0].points], [("2023-09-01", 1), ("2023-09-02", 2)])


@case
def a_line_chart_with_other_scales(box):
    line = chart(box, "plt.plot([1, 10], [1, 2]); plt.xscale('log'); plt.yscale('symlog')")
    same((line.x_scale.value, line.y_scale.value), ("log", "symlog"))
    same(chart(box, "plt.plot(['a', 'b'], [1, 2])").x_scale.value, "categorical")


@case
def a_scatter_chart(box):
    scatter = chart(box, "plt.scatter([1, 2], [3, 4], label='one'); plt.scatter([5], [6], label='two'); plt.xlabel('x')")
    same((scatter.type.value, scatter.x_label, scatter.y_label), ("scatter", "x", None))
    same(
        [(element.label, [tuple(point) for point in element.points]) for element in scatter.elements],
        [("one", [(1, 3), (2, 4)]), ("two", [(5, 6)])],
    )


@case
def a_bar_chart(box):
    bars = chart(box, "plt.bar(['A', 'B'], [1, 2], label='g'); plt.title('Bars'); plt.xlabel('Who'); plt.ylabel('Weight (kg)')")
    same((bars.type.value, *labels(bars)), ("bar", "Bars", "Who", "Weight (kg)", None, "kg"))
    same([(bar.label, bar.group, bar.value) for bar in bars.elements], [("A", "g", 1), ("B", "g", 2)])


@case
def a_lying_bar_chart(box):
    bars = chart(box, "plt.barh(['A', 'B'], [1, 2]); plt.xlabel('Weight (kg)'); plt.ylabel('Who')")
    same(labels(bars), (None, "Who", "Weight (kg)", None, "kg"))
    same([(bar.label, bar.group, bar.value) for bar in bars.elements], [("A", "Group 0", 1), ("B", "Group 0", 2)])


@case
def a_pie_chart(box):
    pie = chart(box, "plt.pie([1, 3], labels=['a', 'b']); plt.title('Pie')")
    same((pie.type.value, pie.title), ("pie", "Pie"))
    same([(slice.label, slice.angle, slice.radius) for slice in pie.elements], [("a", 90, 1), ("b", 270, 1)])


@case
def a_box_and_whisker_chart(box):
    boxes = chart(box, "plt.boxplot([[1, 2, 3, 4, 5, 20], [2, 3, 4, 5, 6]], tick_labels=['A', 'B'], patch_artist=True); plt.ylabel('Height (m)')")
    same((boxes.type.value, *labels(boxes)), ("box_and_whisker", None, None, "Height (m)", None, "m"))
    same(
        [
            (one.label, one.min, one.first_quartile, one.median, one.third_quartile, one.max, list(one.outliers))
            for one in boxes.elements
        ],
        [("A", 1, 2.25, 3.5, 4.75, 5, [20]), ("B", 2, 3, 4, 5, 6, [])],
    )


@case
def a_superchart(box):
    both = chart(
        box,
        "figure, (left, right) = plt.subplots(1, 2)\nleft.plot([1, 2], [3, 4]); left.set_title('Left')\n"
        "right.bar(['a'], [1]); figure.suptitle('Both')",
    )
    same((both.type.value, both.title), ("superchart", "Both"))
    same([(one.type.value, one.title) for one in both.elements], [("line", "Left"), ("bar", None)])
    same([tuple(point) for point in both.elements[0].elements[0].points], [(1, 3), (2, 4)])
    same(both.elements[1].elements[0].value, 1)


@case
def an_unknown_chart(box):
    picture = chart(box, "plt.imshow([[1, 2], [3, 4]]); plt.title('Picture')")
    same((picture.type.value, picture.title, picture.elements), ("unknown", "Picture", []))


@case
def a_figure_with_nothing_in_it_has_no_chart(box):
    execution = run(box, "import matplotlib.pyplot as plt\nplt.figure()\nplt.gca()\nplt.show()")
    same([(bool(result.png), result.chart) for result in execution.results], [(True, None)])
