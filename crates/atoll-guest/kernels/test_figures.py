"""What `figures.py` makes of figures, beside what IPython makes of them. Run by
`test_hooks.py`, in a shell with hooks."""

import base64
import io

cases = []

# Of 255, on average: lines lie up to half a pixel elsewhere.
DIFFERENCE_MAX = 3.0


def case(work):
    cases.append(work)
    return work


def pixels(png):
    import numpy
    from PIL import Image

    return numpy.asarray(Image.open(io.BytesIO(png))).astype(int)


def ways():
    """The way of IPython, and ours."""
    from IPython.core import pylabtools

    ours = pylabtools.print_figure
    [theirs] = [cell.cell_contents for cell in ours.__closure__ if getattr(cell.cell_contents, "__module__", "") == pylabtools.__name__]
    return theirs, ours


def figures():
    """Figures of many kinds, each by its name."""
    import datetime

    import numpy
    from matplotlib import pyplot

    x = numpy.linspace(0.1, 10, 50)

    def plain(axes):
        axes.plot(x, numpy.sin(x))

    def labels(axes):
        axes.plot(x, x, label="a")
        axes.set(title="Title", xlabel="across (m)", ylabel="along")
        axes.legend()
        axes.grid(True)

    def scatter(axes):
        axes.figure.colorbar(axes.scatter(x, x, c=x))

    def logarithms(axes):
        axes.loglog(x, x)

    def dates(axes):
        axes.plot([datetime.date(2026, month, 1) for month in range(1, 13)], range(12))
        axes.figure.autofmt_xdate()

    def bars(axes):
        axes.bar(["one", "two"], [1, 2])

    def picture(axes):
        axes.imshow(numpy.arange(12).reshape(3, 4))

    def pie(axes):
        axes.pie([1, 2, 3], labels=["a", "b", "c"])

    def twins(axes):
        axes.plot(x, x)
        axes.twinx().plot(x, x**3)
        axes.inset_axes([0.5, 0.5, 0.3, 0.3]).plot(x, x)

    def beyond(axes):
        axes.plot(x, x, label="a label that reaches beyond the edge of the figure")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))

    def animated(axes):
        axes.plot(x, x, animated=True)

    def grey(axes):
        axes.plot(x, x)
        axes.figure.set_facecolor("lightgrey")
        axes.figure.suptitle("Above")

    for draw in (plain, labels, scatter, logarithms, dates, bars, picture, pie, twins, beyond, animated, grey):
        figure, axes = pyplot.subplots()
        draw(axes)
        yield draw.__name__, figure
    for layout in ("tight", "constrained"):
        figure, grid = pyplot.subplots(2, 2, layout=layout)
        for axes in grid.flat:
            labels(axes)
        yield f"{layout} layout", figure
    for projection in ("polar", "3d"):
        figure, axes = pyplot.subplots(subplot_kw={"projection": projection})
        axes.plot([0, 1, 2], [0, 1, 2])
        yield projection, figure
    pyplot.close("all")


@case
def figures_look_as_they_would():
    import numpy

    theirs, ours = ways()
    for name, figure in figures():
        # Twice: layouts settle with the first drawing.
        theirs(figure)
        expected = theirs(figure)
        made = ours(figure)
        one, other = pixels(expected), pixels(made)
        assert one.shape == other.shape, (name, one.shape, other.shape)
        difference = numpy.abs(one - other).mean()
        assert difference < DIFFERENCE_MAX, (name, difference)
        assert len(made) < 1.4 * len(expected), (name, len(made), len(expected))
        # Nothing of it stays with the figure; what a layout does each time does.
        assert "layout" in name or (pixels(theirs(figure)) == one).all(), name


@case
def what_is_asked_for_is_what_comes():
    theirs, ours = ways()
    _, figure = next(figures())
    made = ours(figure)
    assert base64.b64decode(ours(figure, base64=True)) == made
    assert ours(figure, "svg").lstrip().startswith("<?xml")
    # What figures are saved with otherwise is as matplotlib has it.
    for options in ({"dpi": 30}, {"facecolor": "red"}, {"bbox_inches": None}):
        assert ours(figure, **options) == theirs(figure, **options), options
    assert ours(figure, "retina") == theirs(figure, "retina")


@case
def a_figure_with_nothing_in_it_is_not_shown():
    from matplotlib import pyplot

    _, ours = ways()
    assert ours(pyplot.figure()) is None
    pyplot.close("all")
