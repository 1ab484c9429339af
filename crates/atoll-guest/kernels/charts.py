"""What a figure of matplotlib shows, as data.

`chart_of_figure` is all that others call. The answer is `{}` for a figure with
nothing in it, a chart for one with one pair of axes, and a `superchart` of them
for one with more. Everything in it is plain: text, finite numbers, lists,
dictionaries and None.

Read by `hooks.py` once a figure is shown, so matplotlib and numpy are there.
"""

import datetime
import re
import sys

import matplotlib.dates
import numpy
from matplotlib.category import StrCategoryConverter
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer
from matplotlib.patches import Wedge
from matplotlib.ticker import FixedLocator

# More points than that are a picture, not something to read.
POINTS_MAX = 100_000

SCALES = {
    "linear", "datetime", "categorical", "log", "symlog",
    "logit", "function", "functionlog", "asinh",
}  # fmt: skip

_UNIT = re.compile(r"\s\((?P<round>[^()]+)\)|\[(?P<square>[^\[\]]+)\]")


class _TooLarge(Exception):
    """The figure has more points than a chart may have."""


def chart_of_figure(figure):
    """The chart of a figure; None when it is too large to be one."""
    axes = figure.get_axes()
    if not any(_Contents(one).anything() for one in axes):
        return {}
    try:
        charts = [_chart_of_axes(one) for one in axes]
    except _TooLarge:
        return None
    if len(charts) == 1:
        return charts[0]
    return {"type": "superchart", "title": figure.get_suptitle(), "elements": charts}


class _Contents:
    """What is drawn in a pair of axes, by what it is."""

    def __init__(self, axes):
        self.axes = axes
        self.boxes = _boxes(axes)
        self.wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
        self.bars = [one for one in axes.containers if isinstance(one, BarContainer) and len(one) > 0]
        self.scatters = [one for one in axes.collections if isinstance(one, PathCollection)]
        self.lines = [line for line in axes.lines if not _is_rule(line)]

    def anything(self):
        return bool(
            self.axes.lines or self.axes.patches or self.axes.collections or self.axes.images
        )

    def kind(self):
        """Which type of chart it is; `unknown` when it is none or more than one."""
        if self.axes.name == "3d":
            return "unknown"
        if self.boxes:
            return "box_and_whisker"
        kinds = {
            "pie": self.wedges,
            "bar": self.bars,
            "scatter": self.scatters,
            "line": self.lines,
        }
        present = [kind for kind, artists in kinds.items() if artists]
        match present:
            case [kind]:
                return kind
            case []:
                # Nothing at all is an empty line chart.
                return "unknown" if self.anything() else "line"
            case _:
                return "unknown"


def _chart_of_axes(axes):
    contents = _Contents(axes)
    chart = {"type": contents.kind(), "title": axes.get_title() or None, "elements": []}
    match chart["type"]:
        case "line":
            chart["elements"] = [_line(*one) for one in enumerate(contents.lines)]
            chart |= _labels(axes) | _ticks(axes)
        case "scatter":
            chart["elements"] = [_scatter(one, axes) for one in contents.scatters]
            chart |= _labels(axes) | _ticks(axes)
        case "bar":
            upright = all(_is_upright(container) for container in contents.bars)
            names = _Names(axes.xaxis if upright else axes.yaxis)
            for number, container in enumerate(contents.bars):
                chart["elements"] += _bars(number, container, upright, names)
            chart |= _labels(axes) if upright else _swapped(_labels(axes))
        case "pie":
            chart["elements"] = [_wedge(wedge) for wedge in contents.wedges]
        case "box_and_whisker":
            upright = _lies_across(contents.boxes[0][1])
            names = _Names(axes.xaxis if upright else axes.yaxis)
            chart["elements"] = [_box(*one, upright, names) for one in contents.boxes]
            chart |= _labels(axes) if upright else _swapped(_labels(axes))
    return chart


# Axes


def _labels(axes):
    labels = {"x_label": axes.get_xlabel() or None, "y_label": axes.get_ylabel() or None}
    return labels | {"x_unit": _unit(labels["x_label"]), "y_unit": _unit(labels["y_label"])}


def _unit(label):
    """The last thing in brackets."""
    found = list(_UNIT.finditer(label or ""))
    return (found[-1]["round"] or found[-1]["square"]) if found else None


def _swapped(labels):
    """Bars that lie have their names at the side."""
    other = {"x": "y", "y": "x"}
    return {f"{other[name[0]]}{name[1:]}": value for name, value in sorted(labels.items())}


def _ticks(axes):
    ticks = {}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        scale = _scale(axis)
        places = axis.get_majorticklocs()
        ticks[f"{name}_ticks"] = [
            _date(place, axis) if scale == "datetime" else _value(place) for place in places
        ]
        ticks[f"{name}_tick_labels"] = _tick_labels(axis, places)
        ticks[f"{name}_scale"] = scale
    return ticks


def _tick_labels(axis, places):
    """What `get_majorticklabels` says, without placing all ticks anew for it."""
    texts = axis.get_major_formatter().format_ticks(places)
    ticks = axis.get_major_ticks(len(places))
    return [
        "" if text is None else str(text)
        for labels in ([tick.label1 for tick in ticks], [tick.label2 for tick in ticks])
        for label, text in zip(labels, texts)
        if label.get_visible()
    ]


def _scale(axis):
    converter = _converter(axis)
    if isinstance(converter, StrCategoryConverter):
        return "categorical"
    dates = (
        matplotlib.dates.DateConverter,
        matplotlib.dates.ConciseDateConverter,
        matplotlib.dates._SwitchableDateConverter,
    )
    # pandas brings converters of its own, for dates and for periods.
    if isinstance(converter, dates) or type(converter).__name__.startswith(("Date", "Period")):
        return "datetime"
    return axis.get_scale() if axis.get_scale() in SCALES else "linear"


def _date(place, axis):
    """A place on an axis of dates."""
    frequency = getattr(axis.axes, "freq", None)
    if frequency is not None and "pandas" in sys.modules:
        period = sys.modules["pandas"].Period(ordinal=round(place), freq=frequency)
        return period.to_timestamp().isoformat()
    return matplotlib.dates.num2date(place).isoformat()


def _converter(axis):
    get = getattr(axis, "get_converter", None)
    return get() if get is not None else axis.converter


class _Names:
    """What an axis calls the places along it."""

    def __init__(self, axis):
        self.axis = axis
        self.scale = _scale(axis)
        # Only ticks that somebody has put there are names; others are a ruler.
        fixed = isinstance(axis.get_major_locator(), FixedLocator) or self.scale == "categorical"
        texts = [label.get_text() for label in axis.get_majorticklabels()] if fixed else []
        self.named = [(place, text) for place, text in zip(axis.get_majorticklocs(), texts) if text]

    def at(self, place):
        if self.named:
            return min(self.named, key=lambda named: abs(named[0] - place))[1]
        if self.scale == "datetime":
            return _date(place, self.axis)
        return f"{place:g}"


# What is drawn


def _line(number, line):
    label = str(line.get_label())
    if label.startswith("_"):
        # Counted among everything that is drawn, where matplotlib tells.
        label = f"Line {label.removeprefix('_child') if label.startswith('_child') else number}"
    return {"label": label, "points": _points(line.get_xdata(orig=True), line.get_ydata(orig=True))}


def _is_rule(line):
    """Whether it is a line of a grid, or one that marks a value."""
    across, along = line.get_xdata(), line.get_ydata()
    if len(across) != 2 or len(along) != 2:
        return False
    return across[0] == across[1] or along[0] == along[1]


def _scatter(collection, axes):
    places = numpy.ma.filled(numpy.ma.asarray(collection.get_offsets(), float), numpy.nan)
    across, along = _read(places[:, 0], axes.xaxis), _read(places[:, 1], axes.yaxis)
    return {"label": str(collection.get_label()), "points": _points(across, along)}


def _read(places, axis):
    """Places along an axis as what they stand for."""
    match _scale(axis):
        case "datetime":
            return [_date(place, axis) for place in places]
        case "categorical":
            names = {place: name for name, place in axis.units._mapping.items()}
            return [names.get(place, place) for place in places]
        case _:
            return places


def _points(across, along):
    if len(across) > POINTS_MAX:
        raise _TooLarge
    return [[_value(x), _value(y)] for x, y in zip(across, along)]


def _value(value):
    """A value as JSON can say it."""
    if isinstance(value, numpy.datetime64):
        return None if numpy.isnat(value) else value.astype("datetime64[us]").item().isoformat()
    if isinstance(value, (datetime.date, datetime.datetime)):
        text = value.isoformat()
        return None if text == "NaT" else text
    if hasattr(value, "to_timestamp"):
        return value.to_timestamp().isoformat()
    if value is None or value is numpy.ma.masked:
        return None
    if isinstance(value, str):
        return str(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if number - number == 0 else None


def _is_upright(container):
    orientation = getattr(container, "orientation", None)
    if orientation is not None:
        return orientation == "vertical"
    # Bars of one kind are as thick as each other.
    thick = {round(bar.get_width(), 9) for bar in container}
    return len(thick) == 1


def _bars(number, container, upright, names):
    group = str(container.get_label())
    if group.startswith("_"):
        group = f"Group {number}"
    elements = []
    for bar in container:
        if upright:
            place, value = bar.get_x() + bar.get_width() / 2, bar.get_height()
        else:
            place, value = bar.get_y() + bar.get_height() / 2, bar.get_width()
        elements.append({"label": names.at(place), "group": group, "value": _value(value)})
    if len(elements) > POINTS_MAX:
        raise _TooLarge
    return elements


def _wedge(wedge):
    label = str(wedge.get_label())
    return {
        "label": "" if label.startswith("_") else label,
        "angle": _value(wedge.theta2 - wedge.theta1),
        "radius": _value(wedge.r),
    }


def _boxes(axes):
    """Boxes that were drawn here and are still here."""
    there = set(map(id, axes.lines))
    boxes = getattr(axes, "_atoll_boxes", [])
    return [(values, median) for values, median in boxes if id(median) in there]


def _lies_across(median):
    """Whether the median is a level line, as in a box that stands."""
    levels = median.get_ydata()
    return len(levels) > 0 and levels[0] == levels[-1]


def _box(values, median, upright, names):
    places = median.get_xdata() if upright else median.get_ydata()
    return {
        "label": names.at((places[0] + places[-1]) / 2),
        "min": _value(values["whislo"]),
        "first_quartile": _value(values["q1"]),
        "median": _value(values["med"]),
        "third_quartile": _value(values["q3"]),
        "max": _value(values["whishi"]),
        "outliers": [_value(value) for value in values.get("fliers", [])],
    }
