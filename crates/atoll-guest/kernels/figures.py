"""Pictures of matplotlib figures, drawn once.

`png_of_figure` is all that others call. What IPython does draws a figure, to
learn how far it reaches, and then draws it again, shifted, at the size of that.
Here it is drawn once and what is empty around it is cut off. The picture has the
same size; edges lie up to half a pixel elsewhere. It is then compressed in the
fastest way that does not make it much larger.

Read by `hooks.py` once a figure is shown, so matplotlib and numpy are there.
"""

import copy
import struct
import zlib
from contextlib import contextmanager

import matplotlib
import matplotlib.axis
import matplotlib.colors
import matplotlib.markers
import numpy
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cbook import CallbackRegistry

# Half the time of level 4; from three quarters to four thirds of the bytes that
# matplotlib writes.
_COMPRESSION = 3
# Filters of rows: as they are, which is best for large areas, and as what differs
# from the row above.
_AS_IT_IS, _AS_ABOVE = 0, 2
_INCHES_PER_METRE = 1 / 0.0254


def png_of_figure(figure):
    """A figure as PNG, without what is empty around it; None for one that has to
    be drawn in another way: it reaches beyond its edges, say."""
    canvas = figure.canvas
    if type(canvas) is not FigureCanvasAgg or canvas.device_pixel_ratio != 1:
        return None
    with _saving(canvas), _ticks_kept(figure), _markers_shared():
        canvas.draw()
        box = figure.get_tightbbox(canvas.get_renderer())
    if box.x0 < 0 or box.y0 < 0 or box.x1 > figure.bbox_inches.x1 or box.y1 > figure.bbox_inches.y1:
        return None
    box = box.padded(matplotlib.rcParams["savefig.pad_inches"])
    drawn = numpy.asarray(canvas.buffer_rgba())
    return _png(_cut(drawn, box, figure.dpi, figure.get_facecolor()), figure.dpi)


@contextmanager
def _saving(canvas):
    """What is animated belongs to a picture as well."""
    before = canvas._is_saving
    canvas._is_saving = True
    try:
        yield
    finally:
        canvas._is_saving = before


@contextmanager
def _ticks_kept(figure):
    """Places ticks, and measures their labels, once where an axis neither moves
    nor is scaled, instead of each time that somebody asks how far it reaches; and
    makes new ones as copies, where they are of the usual kind."""
    kept = []
    for axes in figure.get_axes():
        if axes.name == "rectilinear":
            kept += [axis for axis in (axes.xaxis, axes.yaxis) if not _KEPT & vars(axis).keys()]
    for axis in kept:
        ticks = _Ticks(axis)
        axis._update_ticks = ticks.update
        axis._get_ticklabel_bboxes = ticks.measure
        if type(axis) in _USUAL:
            axis._get_tick = ticks.make
    try:
        yield
    finally:
        for axis in kept:
            for name in _KEPT:
                vars(axis).pop(name, None)


_KEPT = {"_update_ticks", "_get_ticklabel_bboxes", "_get_tick"}
_USUAL = (matplotlib.axis.XAxis, matplotlib.axis.YAxis)


class _Ticks:
    """Ticks of an axis, for as long as it stays where it is."""

    def __init__(self, axis):
        self.axis = axis
        self.update_now = axis._update_ticks
        self.measure_now = axis._get_ticklabel_bboxes
        self.make_now = axis._get_tick
        self.made = {}
        self.at = None
        self.ticks = []
        self.measured = None

    def place(self):
        return (*self.axis.get_view_interval(), *self.axis.axes.bbox.bounds)

    def update(self):
        if self.at is None or self.at != self.place():
            self.ticks, self.measured = self.update_now(), None
            # Limits that are still to be chosen are chosen by the first look.
            self.at = self.place()
        return self.ticks

    def measure(self, ticks, renderer=None):
        if ticks is not self.ticks or renderer is None or self.at != self.place():
            return self.measure_now(ticks, renderer)
        if self.measured is None or self.measured[0] is not renderer:
            self.measured = (renderer, self.measure_now(ticks, renderer))
        return tuple(list(boxes) for boxes in self.measured[1])

    def make(self, major):
        """A tick as nobody has changed it: to check all of its properties, as often
        as an axis has ticks, takes longer than to draw them."""
        if major not in self.made:
            self.made[major] = self.make_now(major)
        tick = _copied(self.made[major])
        for part in ("tick1line", "tick2line", "gridline", "label1", "label2"):
            setattr(tick, part, _copied(getattr(tick, part)))
        return tick


def _copied(artist):
    """A new artist with the same properties. It shares with the other one what is
    replaced, and never changed, when a property is set."""
    other = object.__new__(type(artist))
    vars(other).update(vars(artist))
    other._callbacks = CallbackRegistry(signals=["pchanged"])
    other._sticky_edges = artist._sticky_edges._make(map(list, artist._sticky_edges))
    return other


@contextmanager
def _markers_shared():
    """Each tick has three lines, and each line a marker, which is copied with all
    that it is made of although nobody ever changes a part of it."""
    module = matplotlib.markers
    before = module.copy
    module.copy = _Copy
    try:
        yield
    finally:
        module.copy = before


class _Copy:
    """In the place of the module of that name."""

    copy = staticmethod(copy.copy)

    @staticmethod
    def deepcopy(value):
        return dict(value) if type(value) is dict else copy.deepcopy(value)


def _cut(drawn, box, dpi, colour):
    """What lies in `box`, with `colour` where that is more than was drawn."""
    height, width = drawn.shape[:2]
    # As many as matplotlib would have.
    columns, rows = int(box.width * dpi), int(box.height * dpi)
    left, above = round(box.x0 * dpi), height - round(box.y0 * dpi) - rows
    right, below = left + columns, above + rows
    if min(left, above, width - right, height - below) >= 0:
        return drawn[above:below, left:right]
    pixels = numpy.empty((rows, columns, 4), numpy.uint8)
    pixels[:] = [round(255 * part) for part in matplotlib.colors.to_rgba(colour)]
    piece = drawn[max(above, 0) : below, max(left, 0) : right]
    top, start = max(-above, 0), max(-left, 0)
    pixels[top : top + piece.shape[0], start : start + piece.shape[1]] = piece
    return pixels


def _png(pixels, dpi):
    rows, columns, channels = pixels.shape
    # Each row begins with its filter.
    lines = numpy.empty((rows, 1 + columns * channels), numpy.uint8)
    lines[:, 0] = _AS_IT_IS
    lines[:, 1:] = pixels.reshape(rows, columns * channels)
    # One that repeats the row above, as in bars, is nothing but zeros.
    whole = pixels.view(numpy.uint32)[:, :, 0]
    repeated = 1 + numpy.flatnonzero((whole[1:] == whole[:-1]).all(axis=1))
    lines[repeated] = 0
    lines[repeated, 0] = _AS_ABOVE
    per_metre = round(dpi * _INCHES_PER_METRE)
    software = f"Software\0Matplotlib version{matplotlib.__version__}, https://matplotlib.org/"
    return b"".join((
        b"\x89PNG\r\n\x1a\n",
        # Eight bits for each of red, green, blue and how opaque it is.
        _chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)),
        _chunk(b"tEXt", software.encode("latin-1")),
        _chunk(b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1)),
        _chunk(b"IDAT", zlib.compress(lines, _COMPRESSION)),
        _chunk(b"IEND", b""),
    ))  # fmt: skip


def _chunk(kind, content):
    checksum = zlib.crc32(content, zlib.crc32(kind))
    return b"".join((struct.pack(">I", len(content)), kind, content, struct.pack(">I", checksum)))
