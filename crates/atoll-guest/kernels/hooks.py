"""What a Python kernel shows beyond what IPython does by itself.

Executed in each kernel once its shell is there; `charts.py` and `figures.py` lie
beside it and are read when the first figure is shown. Data frames get `e2b/data`, figures of
matplotlib `e2b/chart`, lists and dictionaries `application/json`; images of
Pillow are shown by `show()` and by `save(path)`.

Nothing here imports pandas, matplotlib or Pillow, and no failure of what is
here reaches the cell: the worst case is that a representation is missing.
"""

import os
import sys

# Beyond this, data and JSON would be larger than anybody reads: text remains.
_DATA_CELLS_MAX = 1_000_000
_JSON_BYTES_MAX = 16 * 1024 * 1024
_JSON_DEPTH_MAX = 200
# What shows figures in the answer.
_FIGURES = "module://matplotlib_inline.backend_inline"


def _install():
    from IPython import get_ipython
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    shell = get_ipython()
    if shell is None:
        return

    class DataFormatter(BaseFormatter):
        """Data frames as lists by column."""

        format_type = Unicode("e2b/data")
        print_method = ObjectName("_repr_e2b_data_")
        _return_type = dict

    class ChartFormatter(BaseFormatter):
        """Figures as what they show.

        Looks for itself: what is registered for figures is forgotten by every
        formatter when IPython chooses how to draw them.
        """

        format_type = Unicode("e2b/chart")
        print_method = ObjectName("_repr_e2b_chart_")
        _return_type = dict

        def __call__(self, value):
            module = sys.modules.get("matplotlib.figure")
            if module is not None and isinstance(value, module.Figure):
                return _quiet(_chart_of_figure)(value)
            return super().__call__(value)

    formatters = shell.display_formatter.formatters
    data = DataFormatter(parent=shell.display_formatter)
    # Where pandas says that its frames are from depends on its version.
    for module in ("pandas", "pandas.core.frame"):
        data.for_type_by_name(module, "DataFrame", _quiet(_data_of_frame))
    formatters["e2b/data"] = data
    formatters["e2b/chart"] = ChartFormatter(parent=shell.display_formatter)
    for kind in (dict, list):
        formatters["application/json"].for_type(kind, _quiet(_json_of_container))
    formatters["text/plain"].max_seq_length = 0
    # The name of the theme is written differently by older and newer versions.
    if str(shell.colors).lower() != "nocolor":
        shell.colors = "NoColor"

    _show_figures(shell)
    _draw_figures_once()
    _after_import("PIL.Image", _show_images)
    _after_import("matplotlib.axes._axes", _remember_boxes)


def _quiet(represent):
    """`represent`, that gives nothing where it would fail."""

    def quiet(value):
        try:
            return represent(value)
        except (Exception, RecursionError):
            return None

    return quiet


# Imports


class _Watcher:
    """Calls back once a module has been imported, and is gone after that."""

    def __init__(self, name, done):
        self.name = name
        self.done = done

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        self.leave()
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            self.attach(spec.loader)
        return spec

    def attach(self, loader):
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            try:
                self.done(module)
            except Exception:
                pass

        loader.exec_module = exec_module

    def leave(self):
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _after_import(name, done):
    """Calls `done` with the module `name`, now or as soon as it has been imported."""
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _Watcher(name, done))
        return
    try:
        done(module)
    except Exception:
        pass


# Data frames


def _data_of_frame(frame):
    rows, columns = frame.shape
    if rows * columns > _DATA_CELLS_MAX:
        return None
    return {
        str(name): _column(frame.iloc[:, index]) for index, name in enumerate(frame.columns)
    }


def _column(column):
    values = column.tolist()
    kind = getattr(column.dtype, "kind", "O")
    # Numbers that numpy has are plain; a sum is finite only if all of them are.
    if kind in "bui" and type(column.dtype).__module__.startswith("numpy"):
        return values
    if kind == "f" and type(column.dtype).__module__.startswith("numpy"):
        total = sum(values)
        if total - total == 0:
            return values
    return [_plain(value) for value in values]


def _plain(value):
    """A value as JSON can say it: dates as ISO, what is missing as null, the rest as text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    if hasattr(value, "isoformat"):
        text = value.isoformat()
        return None if text == "NaT" else text
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return _plain(value.tolist())
    text = str(value)
    return None if text == "<NA>" else text


# Lists and dictionaries


def _json_of_container(value):
    encoded = _encoded(value)
    if encoded is None or len(encoded) > _JSON_BYTES_MAX:
        return None
    import json

    return json.loads(encoded)


def _encoded(value):
    try:
        import orjson
    except ImportError:
        import json

        return json.dumps(_jsonable(value, 0), allow_nan=False).encode()
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def _jsonable(value, depth):
    """As orjson takes it: the same types, the same refusals."""
    if depth > _JSON_DEPTH_MAX:
        raise TypeError("it is nested too deeply")
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, (list, tuple)):
        return [_jsonable(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_json_key(key): _jsonable(item, depth + 1) for key, item in value.items()}
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return _jsonable(value.tolist(), depth + 1)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return {name: _jsonable(getattr(value, name), depth + 1) for name in kind.__dataclass_fields__}
    if kind.__name__ == "UUID" and kind.__module__ == "uuid":
        return str(value)
    if "enum" in sys.modules and isinstance(value, sys.modules["enum"].Enum):
        return _jsonable(value.value, depth + 1)
    raise TypeError(f"{kind.__name__} is not JSON")


def _json_key(key):
    if isinstance(key, str):
        return key
    key = _jsonable(key, _JSON_DEPTH_MAX)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    return str(key)


# Figures


def _show_figures(shell):
    """Where matplotlib was imported before there was a shell, it shows nothing: once more, then.

    Imported later, it does as the environment says.
    """
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is None or os.environ.get("MPLBACKEND") != _FIGURES:
        return
    try:
        if "matplotlib.pyplot" not in sys.modules:
            # It is chosen with pyplot, and meets the shell when it is imported.
            matplotlib.rcParams["backend"] = _FIGURES
            sys.modules.pop("matplotlib_inline.backend_inline", None)
            return
        from IPython.core.pylabtools import activate_matplotlib
        from matplotlib_inline.backend_inline import configure_inline_support

        activate_matplotlib(_FIGURES)
        configure_inline_support(shell, _FIGURES)
    except Exception:
        pass


def _chart_of_figure(figure):
    return _beside("charts").chart_of_figure(figure)


def _draw_figures_once():
    """PNG of figures as `figures.py` makes them; everything else, and what it
    leaves, as IPython does."""
    from IPython.core import pylabtools

    print_figure = pylabtools.print_figure
    if print_figure.__module__ == __name__:
        return
    once = _quiet(lambda figure: _beside("figures").png_of_figure(figure))

    def print_once(fig, fmt="png", bbox_inches="tight", base64=False, **kwargs):
        if fmt == "png" and bbox_inches == "tight" and not kwargs and fig.axes:
            png = once(fig)
            if png is not None:
                from binascii import b2a_base64

                return b2a_base64(png, newline=False).decode("ascii") if base64 else png
        return print_figure(fig, fmt, bbox_inches, base64, **kwargs)

    print_once.__doc__ = print_figure.__doc__
    print_once.__name__ = print_figure.__name__
    pylabtools.print_figure = print_once


def _remember_boxes(module):
    """What a box plot was drawn from is exact; what can be read from its lines is not."""
    draw = module.Axes.bxp
    if hasattr(draw, "__wrapped__") and draw.__module__ == __name__:
        return

    def bxp(self, bxpstats, *arguments, **options):
        drawn = draw(self, bxpstats, *arguments, **options)
        try:
            remembered = self.__dict__.setdefault("_atoll_boxes", [])
            remembered.extend(zip(bxpstats, drawn["medians"]))
        except Exception:
            pass
        return drawn

    bxp.__doc__ = draw.__doc__
    bxp.__name__ = draw.__name__
    bxp.__qualname__ = draw.__qualname__
    bxp.__wrapped__ = draw
    module.Axes.bxp = bxp


_loaded = {}


def _beside(name):
    """A module beside this one, read once."""
    if name not in _loaded:
        from importlib.util import module_from_spec, spec_from_file_location

        path = os.path.join(os.path.dirname(__file__), f"{name}.py")
        spec = spec_from_file_location(f"atoll_{name}", path)
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        _loaded[name] = module
    return _loaded[name]


# Images


def _show_images(module):
    from IPython.display import display

    image = module.Image
    save_to = image.save
    if save_to.__module__ == __name__:
        return

    def show(self, title=None, **options):
        try:
            display(self)
        except Exception:
            pass

    def save(self, fp, format=None, **params):
        saved = save_to(self, fp, format, **params)
        try:
            if isinstance(fp, (str, bytes, os.PathLike)) and not _is_matplotlib(sys._getframe(1)):
                display(self)
        except Exception:
            pass
        return saved

    show.__doc__ = image.show.__doc__
    save.__doc__ = save_to.__doc__
    image.show = show
    image.save = save


def _is_matplotlib(frame):
    """`savefig` saves through Pillow; figures are shown in their own way."""
    return str(frame.f_globals.get("__name__", "")).startswith("matplotlib.")


try:
    _install()
except Exception:
    pass
