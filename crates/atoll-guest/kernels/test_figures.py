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
def pixels_are_as_they_were_drawn():
    """Whichever way rows are written: all alike, some alike, none alike."""
    import figures as ours
    import numpy

    random = numpy.random.default_rng(1).integers(0, 256, (7, 5, 4), numpy.uint8)
    some = random.copy()
    some[2] = some[1]
    some[6] = some[5]
    for drawn in (numpy.full((7, 5, 4), 200, numpy.uint8), some, random, random[:1], random[1:5, 1:4]):
        assert (pixels(ours._png(drawn, 100)) == drawn).all()


def parts(tick):
    return (tick, tick.tick1line, tick.tick2line, tick.gridline, tick.label1, tick.label2)


def looks(artist):
    """All that can be asked of an artist; places of transforms for transforms."""
    said = artist.properties()
    for name in ("figure", "axes", "children", "window_extent", "tightbbox", "transform", "path", "transformed_clip_path_and_affine"):
        said.pop(name, None)
    return {name: repr(value) for name, value in said.items() if " at 0x" not in repr(value)}


@case
def ticks_are_those_that_matplotlib_makes():
    from matplotlib import pyplot

    theirs, ours = ways()
    drawn = []
    for way in (theirs, ours):
        figure, axes = pyplot.subplots()
        axes.plot([0, 10], [0, 10])
        axes.tick_params(axis="x", rotation=30, labelsize=7, direction="in", pad=9)
        axes.grid(True, which="both", color="red", alpha=0.4)
        axes.minorticks_on()
        # What somebody does to one tick is not a property of others.
        axes.xaxis.majorTicks[0].label1.set_gid("first")
        way(figure)
        drawn.append(axes)
    for one, other in ((drawn[0].xaxis, drawn[1].xaxis), (drawn[0].yaxis, drawn[1].yaxis)):
        for minor in (False, True):
            some, others = (axis.get_minor_ticks() if minor else axis.get_major_ticks() for axis in (one, other))
            assert len(some) == len(others) > 2
            for expected, made in zip(some, others):
                assert type(expected) is type(made) and vars(expected).keys() == vars(made).keys()
                for a, b in zip(parts(expected), parts(made)):
                    assert vars(a).keys() == vars(b).keys(), vars(a).keys() ^ vars(b).keys()
                    assert looks(a) == looks(b), (looks(a), looks(b))
    # They are made by matplotlib again, and each has parts of its own.
    axis = drawn[1].xaxis
    assert "_get_tick" not in vars(axis)
    first, second, *_, last = axis.get_major_ticks()
    second.label1.set_fontsize(20)
    second.tick1line.set_markersize(11)
    second.label1.sticky_edges.x.append(1)
    second.label1.add_callback(lambda _: None)
    for tick in (first, last):
        assert tick.label1.get_fontsize() == 7 and tick.tick1line.get_markersize() != 11
        assert tick.label1.sticky_edges.x == [] and not tick.label1._callbacks.callbacks
    assert last.label1.get_gid() is None
    pyplot.close("all")


@case
def ticks_of_another_kind_are_made_in_their_own_way():
    from matplotlib import pyplot
    from matplotlib.axis import XAxis

    made = []

    class Counted(XAxis):
        def _get_tick(self, major):
            made.append(major)
            return super()._get_tick(major)

    _, ours = ways()
    figure, axes = pyplot.subplots()
    axes.plot([0, 10], [0, 10])
    axes.xaxis.__class__ = Counted
    assert ours(figure) is not None
    assert len(made) >= len(axes.get_xticks()) - 1, made
    pyplot.close("all")


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
