"""Objects to JSON and named arrays, and back, without running code that a file names.

Only data can be written: numbers, strings, None, lists, tuples, mappings with string keys, arrays, sparse matrices, and
dataclasses whose class is registered (:mod:`bnp_dask.core.registry`).  A file holds class *names*.  Reading looks them
up in the reader's registry and refuses every other name, so that a file can only make objects of classes that the
reader's code registered.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import numpy as np
from scipy import sparse

from bnp_dask.core.registry import REGISTRY, Registry, file_name
from bnp_dask.errors import DataError, StoreError
from bnp_dask.inputs import from_parts, shown

Spec = Any
"""JSON: None, bool, int, float, str, list, dict."""

_ARRAY_KINDS = "biuf"
_SCALARS: Mapping[str, type] = MappingProxyType(
    {t.__name__: t for t in (np.bool_, np.int8, np.int16, np.int32, np.int64)}
    | {t.__name__: t for t in (np.uint8, np.uint16, np.uint32, np.uint64)}
    | {t.__name__: t for t in (np.float16, np.float32, np.float64)}
)


def to_spec(obj: object, classes: Registry | None = None) -> tuple[Spec, dict[str, np.ndarray]]:
    """Take an object apart into JSON and arrays.

    Parameters
    ----------
    obj
        Anything built of dataclasses, numbers, strings, None, lists, tuples, mappings with string keys,
        arrays and sparse CSR matrices.
    classes
        Refuse dataclasses that are not registered, so that the spec can be read again; None accepts any class, for
        specs that are only compared.

    Returns
    -------
    spec
        JSON-able; NaN and infinity are written as words.
    arrays
        Arrays by name; names are paths through the object such as ``"observation.m"``, safe as file names.

    Raises
    ------
    StoreError
        Part of the object is not data, or its class is not registered; names its path.
    """
    arrays: dict[str, np.ndarray] = {}
    return _encode(obj, (), classes, arrays), arrays


def to_identity(obj: Any) -> list[Any]:
    """Identity of an object, JSON-able: its spec, and CRC-32 of its arrays by name."""
    spec, arrays = to_spec(obj)
    return [spec, {name: zlib.crc32(np.ascontiguousarray(a).tobytes()) for name, a in sorted(arrays.items())}]


def form_of(obj: Any) -> Spec:
    """Classes of an object and its parts, and kinds and shapes of its arrays: all but the values, JSON-able."""
    spec, arrays = to_spec(obj)

    def form(spec: Spec) -> Spec:
        if isinstance(spec, list):
            return [form(own) for own in spec]
        if not isinstance(spec, dict):
            return "a number" if isinstance(spec, (int, float)) else type(spec).__name__
        kind = next(iter(spec), None)
        if kind == "$array":
            array = arrays[spec["$array"]]
            return f"an array {array.shape} of kind {array.dtype.kind}"
        if kind == "$class":
            return {"class": spec["$class"], **{name: form(own) for name, own in spec["fields"].items()}}
        return "a number" if kind in ("$float", "$scalar") else {str(kind): form(spec[kind])}

    return form(spec)


def from_spec(spec: Spec, arrays: Mapping[str, np.ndarray], classes: Registry = REGISTRY) -> Any:
    """Inverse of :func:`to_spec`.

    Raises
    ------
    StoreError
        A class that is not registered, a setting that the class does not have, a missing array, or anything that
        :func:`to_spec` does not write.
    """
    if spec is None or isinstance(spec, (bool, int, float, str)):
        return spec
    if isinstance(spec, list):
        return [from_spec(v, arrays, classes) for v in spec]
    if not isinstance(spec, dict):
        raise StoreError(f"found a {type(spec).__name__} where JSON was expected")
    kind = next(iter(spec), None)
    if kind == "$class":
        return _decode_dataclass(spec, arrays, classes)
    try:
        if kind == "$array":
            array = _array(spec["$array"], arrays)
            return np.asfortranarray(array) if spec.get("order") == "F" else array
        if kind == "$tuple":
            return tuple(from_spec(v, arrays, classes) for v in spec["$tuple"])
        if kind == "$map":
            return {str(k): from_spec(v, arrays, classes) for k, v in spec["$map"]}
        if kind == "$csr":
            parts = {n: _array(spec["$csr"][n], arrays) for n in ("data", "indices", "indptr")}
            n_rows, n_columns = (int(n) for n in spec["shape"])
            return from_parts(**parts, shape=(n_rows, n_columns), name="a sparse matrix")
        if kind == "$float":
            return float(spec["$float"])
        if kind == "$scalar":
            return _SCALARS[spec["$scalar"]](spec["value"])
    except (KeyError, TypeError, ValueError, DataError) as error:
        raise StoreError(f"damaged description of a {kind}: {str(spec)[:200]}") from error
    raise StoreError(f"unknown kind of value {kind!r} in a file; was it written by a newer version?")


def require_spec(spec: Spec, place: str) -> None:
    """StoreError, naming ``place``, unless JSON is a description that :func:`to_spec` may have written."""
    if isinstance(spec, list):
        for number, own in enumerate(spec):
            require_spec(own, f"{place}[{number}]")
    if not isinstance(spec, dict):
        return
    kind = next(iter(spec), None)
    if kind == "$class" and isinstance(spec["$class"], str) and isinstance(spec.get("fields"), dict):
        for name, own in spec["fields"].items():
            require_spec(own, f"{place}.{name}")
    elif kind == "$tuple" and isinstance(spec["$tuple"], list):
        require_spec(spec["$tuple"], place)
    elif kind == "$map" and isinstance(spec["$map"], list):
        for pair in spec["$map"]:
            if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
                raise StoreError(f"{place} is a mapping with the entry {shown(pair)}; needs [name, value]")
            require_spec(pair[1], f"{place}.{pair[0]}")
    elif kind not in ("$array", "$csr", "$float", "$scalar"):
        raise StoreError(
            f"{place} is {shown(spec)}; needs a number, text, null, a list, or a description of a class, such as "
            '{"$class": "DPMixture", "fields": {}}'
        )


def with_added(spec: Spec, obj: Any) -> Spec:
    """A description by an earlier version, completed with the defaults of settings that its classes gained since.

    Parameters
    ----------
    spec
        Spec from :func:`to_spec`.
    obj
        An object of the same classes; parts of another class stay unchanged in the description.
    """
    if isinstance(spec, list) and isinstance(obj, (list, tuple)) and len(spec) == len(obj):
        return [with_added(own, part) for own, part in zip(spec, obj, strict=True)]
    if isinstance(spec, dict) and "$map" in spec and isinstance(obj, Mapping):
        return {"$map": [[key, with_added(own, obj.get(key))] for key, own in spec["$map"]]}
    if not isinstance(spec, dict) or not is_dataclass(obj) or spec.get("$class") != file_name(type(obj)):
        return spec
    written = {name: with_added(own, getattr(obj, name, None)) for name, own in spec["fields"].items()}
    added = [(f, _default(f)) for f in fields(obj) if f.init and f.name not in written and not _required(f)]
    return {**spec, "fields": {**written, **{f.name: to_spec(value)[0] for f, value in added if _is_written(f, value)}}}


def first_difference(place: str, a: Spec, b: Spec) -> tuple[str, Spec, Spec]:
    """First difference of two descriptions: its path, and the part of each."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        parts = [(f"{place}[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b, strict=True))]
    elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        parts = [(f"{place}.{name}", a[name], b[name]) for name in a]
    else:
        return place, a, b
    return next(first_difference(*part) for part in parts if part[1] != part[2])


def _encode(obj: Any, path: tuple[str, ...], classes: Registry | None, arrays: dict[str, np.ndarray]) -> Spec:
    if obj is None or isinstance(obj, (bool, str)) or type(obj) is int:
        return obj
    if type(obj) is float:
        return obj if math.isfinite(obj) else {"$float": repr(obj)}
    if isinstance(obj, np.generic):
        return _encode_scalar(obj, path)
    if isinstance(obj, np.ndarray):
        name = _keep(obj, path, arrays)
        # files hold arrays by row; the memory order is kept because it affects the rounding of matrix products
        by_column = obj.flags.f_contiguous and not obj.flags.c_contiguous
        return {"$array": name, "order": "F"} if by_column else {"$array": name}
    if sparse.issparse(obj):
        csr = sparse.csr_array(obj)
        held = {"data": csr.data, "indices": csr.indices, "indptr": csr.indptr}
        parts = {n: _keep(a, (*path, n), arrays) for n, a in held.items()}
        return {"$csr": parts, "shape": [int(n) for n in csr.shape]}
    if isinstance(obj, (list, tuple)):
        items = [_encode(v, (*path, str(i)), classes, arrays) for i, v in enumerate(obj)]
        return items if isinstance(obj, list) else {"$tuple": items}
    if isinstance(obj, Mapping):
        _check_keys(obj, path)
        return {"$map": [[k, _encode(v, (*path, k), classes, arrays)] for k, v in obj.items()]}
    if is_dataclass(obj) and not isinstance(obj, type):
        return _encode_dataclass(obj, path, classes, arrays)
    raise StoreError(
        f"{_where(path)} is a {type(obj).__name__}, which cannot be written to a file: only numbers, strings, None, "
        "arrays, lists, tuples, mappings and registered dataclasses can"
    )


def _encode_dataclass(obj: Any, path: tuple[str, ...], classes: Registry | None, arrays: dict[str, np.ndarray]) -> Spec:
    name = file_name(type(obj))
    if classes is not None and type(obj) not in classes:
        raise StoreError(
            f"{_where(path)} is a {name}, which is not registered, so that no file could be read that holds it; put "
            "@bnp_dask.register above @dataclass where the class is defined"
        )
    held = [(f, getattr(obj, f.name)) for f in fields(obj) if f.init]
    values = {f.name: value for f, value in held if _is_written(f, value)}
    return {"$class": name, "fields": {n: _encode(v, (*path, n), classes, arrays) for n, v in values.items()}}


def _encode_scalar(obj: np.generic, path: tuple[str, ...]) -> Spec:
    kind = type(obj).__name__
    if kind == "bool":
        kind = "bool_"
    if kind not in _SCALARS and np.dtype(type(obj)).name in _SCALARS:
        kind = np.dtype(type(obj)).name
    if kind not in _SCALARS:
        raise StoreError(f"{_where(path)} is a number of type {kind}, which cannot be written to a file")
    value = obj.item()
    if isinstance(value, float) and not math.isfinite(value):
        value = repr(value)
    return {"$scalar": kind, "value": value}


def _keep(array: np.ndarray, path: tuple[str, ...], arrays: dict[str, np.ndarray]) -> str:
    if array.dtype.kind not in _ARRAY_KINDS:
        raise StoreError(
            f"{_where(path)} is an array of {array.dtype}; only arrays of numbers can be written to a file"
        )
    name = ".".join(_safe(part) for part in path) or "array"
    arrays[name] = array
    return name


def _safe(key: str) -> str:
    return quote(key, safe="").replace(".", "%2E")


def _check_keys(obj: Mapping[Any, Any], path: tuple[str, ...]) -> None:
    wrong = [k for k in obj if not isinstance(k, str)]
    if wrong:
        raise StoreError(f"{_where(path)} is a mapping with the key {wrong[0]!r}; keys in files must be strings")


def _where(path: tuple[str, ...]) -> str:
    return "the object" if not path else ".".join(path)


def _array(name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    if name not in arrays:
        raise StoreError(f"array {name!r} is missing; the file has {', '.join(sorted(arrays)) or 'none'}")
    return arrays[name]


def _decode_dataclass(spec: dict[str, Spec], arrays: Mapping[str, np.ndarray], classes: Registry) -> Any:
    name, written = spec["$class"], spec.get("fields")
    cls = classes.find(name)
    if not isinstance(written, dict):
        raise StoreError(f"damaged description of a {name}: no fields")
    known = {f.name: f for f in fields(cls) if f.init}
    unknown = sorted(set(written) - set(known))
    if unknown:
        raise StoreError(f"{name} has no setting {', '.join(unknown)}; was the file written by a newer version?")
    missing = [n for n, f in known.items() if n not in written and _required(f)]
    if missing:
        raise StoreError(f"{name} needs {', '.join(missing)}, which the file does not give")
    values = {n: from_spec(v, arrays, classes) for n, v in written.items()}
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise StoreError(f"the file describes a {name} that cannot be: {error}") from error


def _is_written(field: Field[Any], value: Any) -> bool:
    """Whether a description has a field: optional ones are left out while they are None."""
    return not (value is None and field.metadata.get("optional"))


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING
