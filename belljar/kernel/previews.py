"""A value in a line: its type, shape, size and first elements, without running any of the user's code to find out.

Only types that we know are looked into, by their own class and not by what they claim to be: __repr__, __len__ or a property of
the user's may print, loop or fail.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from itertools import islice
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

MAX_PREVIEW = 200
MAX_ITEMS = 10
MAX_DEPTH = 3
MAX_HASHED = 8 * 1024 * 1024

_SCALARS = (bool, float, complex, type(None), type(...), range, slice)
_SEQUENCES = (list, tuple, set, frozenset, deque)
_MAPPINGS = (dict, defaultdict, OrderedDict, Counter)
_QUICK_REPR = frozenset({"datetime", "decimal", "pathlib", "uuid", "fractions", "zoneinfo"})


class Summary(NamedTuple):
    shape: str | None
    size_bytes: int | None
    preview: str
    # Differs when the value has changed, as far as can be told in a bounded time.
    mark: Any


def summarize(value: Any) -> Summary:
    kind = type(value)
    try:
        for (module, name), describe in _KNOWN.items():
            library = sys.modules.get(module)
            known = getattr(library, name, None)
            if known is not None and kind is known:
                return describe(value)
        return _plain(value)
    except Exception:  # a library that does not look as we know it
        return Summary(None, None, f"<{kind.__name__}>", id(value))


def preview(value: Any, depth: int = MAX_DEPTH) -> str:
    return _cut(_preview(value, depth))


def _plain(value: Any) -> Summary:
    kind = type(value)
    size = sys.getsizeof(value) if kind.__module__ == "builtins" else object.__sizeof__(value)
    text = preview(value)
    if kind in _SEQUENCES or kind in _MAPPINGS:
        items = value if kind in _SEQUENCES else [part for pair in islice(value.items(), 1000) for part in pair]
        return Summary(f"({len(value)},)", size, text, (id(value), len(value), text, _ids(items)))
    if kind in (str, bytes, bytearray):
        return Summary(f"({len(value)},)", size, text, (id(value), len(value), text))
    attributes = getattr(value, "__dict__", None) if kind.__dict__.get("__getattribute__") is None else None
    mark = _ids(part for pair in islice(attributes.items(), 1000) for part in pair) if type(attributes) is dict else None
    return Summary(None, size, text, (id(value), text, mark))


def _preview(value: Any, depth: int) -> str:
    kind = type(value)
    if kind is int:
        return repr(value) if value.bit_length() < 2000 else f"<int of {value.bit_length()} bits>"
    if kind in (str, bytes, bytearray):
        return repr(value[:MAX_PREVIEW]) + ("..." if len(value) > MAX_PREVIEW else "")
    if kind in _SCALARS or kind.__module__ in _QUICK_REPR:
        return repr(value)
    if kind in _SEQUENCES or kind in _MAPPINGS:
        return _preview_container(value, depth)
    if kind in (FunctionType, BuiltinFunctionType):
        return f"<function {value.__qualname__}>"
    if kind is ModuleType:
        return f"<module {value.__name__}>"
    if kind is type:
        return f"<class {value.__qualname__}>"
    known = kind.__module__ in ("__main__", "builtins")
    return f"<{kind.__qualname__}>" if known else f"<{kind.__module__}.{kind.__qualname__}>"


def _preview_container(value: Any, depth: int) -> str:
    kind: Any = type(value)
    opening, closing = "[]" if kind in (list, deque) else "()" if kind is tuple else "{}"
    rest = ", ..." if len(value) > MAX_ITEMS else ""
    if depth == 0:
        return f"{opening}...{closing}"
    if kind in _MAPPINGS:
        parts = [f"{_preview(key, depth - 1)}: {_preview(item, depth - 1)}" for key, item in islice(value.items(), MAX_ITEMS)]
    else:
        parts = [_preview(item, depth - 1) for item in islice(value, MAX_ITEMS)]
    comma = "," if kind is tuple and len(value) == 1 else ""
    text = f"{opening}{', '.join(parts)}{rest}{comma}{closing}"
    return text if kind in (list, tuple, set, dict) else f"{kind.__name__}({text})"


def _cut(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_PREVIEW else text[: MAX_PREVIEW - 3] + "..."


def _ids(values: Iterable[Any]) -> int:
    return hash(tuple(map(id, islice(values, 2000))))


def _array(value: Any) -> Summary:
    numpy = sys.modules["numpy"]
    if value.dtype.hasobject:
        text = f"array of {value.dtype}"
    else:
        sample = value.reshape(-1)[:MAX_ITEMS] if value.flags.c_contiguous else numpy.array(value.flat[:MAX_ITEMS])
        text = f"{value.dtype} {numpy.array2string(sample, separator=', ', threshold=MAX_ITEMS)}"
        text = text.replace("\n", "") + (" ..." if value.size > MAX_ITEMS else "")
    return Summary(str(value.shape), int(value.nbytes), _cut(text), (id(value), value.shape, text, _checksum(value)))


def _checksum(array: Any) -> int | None:
    """Of an array's bytes; of an array of objects these are the objects' addresses."""
    if array.nbytes > MAX_HASHED:
        return None
    return zlib.crc32(array.tobytes())


def _frame(value: Any) -> Summary:
    columns = [f"{preview(name, 1)}: {dtype}" for name, dtype in islice(value.dtypes.items(), 20)]
    text = f"{len(value)} rows; " + ", ".join(columns) + (", ..." if value.shape[1] > 20 else "")
    size = int(value.memory_usage(index=True, deep=False).sum())
    blocks = [] if size > MAX_HASHED else [_checksum(column.to_numpy()) for _, column in islice(value.items(), 200)]
    return Summary(str(tuple(value.shape)), size, _cut(text), (id(value), text, tuple(blocks)))


def _series(value: Any) -> Summary:
    first = ", ".join(preview(_item(item), 1) for item in islice(value.array, MAX_ITEMS))
    text = f"{value.dtype} [{first}{', ...' if len(value) > MAX_ITEMS else ''}]"
    size = int(value.memory_usage(index=True, deep=False))
    mark = _checksum(value.to_numpy()) if size <= MAX_HASHED else None
    return Summary(str(tuple(value.shape)), size, _cut(text), (id(value), text, mark))


def _item(value: Any) -> Any:
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value


def _polars_frame(value: Any) -> Summary:
    columns = ", ".join(f"{preview(name, 1)}: {dtype}" for name, dtype in islice(value.schema.items(), 20))
    text = f"{value.height} rows; {columns}"
    return Summary(str(value.shape), int(value.estimated_size()), _cut(text), (id(value), text))


def _polars_series(value: Any) -> Summary:
    text = f"{value.dtype} {preview(value.head(MAX_ITEMS).to_list())}"
    return Summary(f"({len(value)},)", int(value.estimated_size()), _cut(text), (id(value), text))


def _tensor(value: Any) -> Summary:
    size = int(value.numel()) * int(value.element_size())
    return Summary(str(tuple(value.shape)), size, f"{value.dtype} on {value.device}", (id(value), value._version))


_KNOWN: dict[tuple[str, str], Callable[[Any], Summary]] = {
    ("numpy", "ndarray"): _array,
    ("pandas", "DataFrame"): _frame,
    ("pandas", "Series"): _series,
    ("polars", "DataFrame"): _polars_frame,
    ("polars", "Series"): _polars_series,
    ("torch", "Tensor"): _tensor,
}
