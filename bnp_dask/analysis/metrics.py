"""Agreement of labels with known labels."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import plain


def as_labels(value: Any, name: str) -> np.ndarray:
    """One label per atom, ``(n,)``; DataError if a label is missing or they cannot be sorted.

    A missing value equals no other, itself included: it would count as a label with which nothing agrees.
    """
    array = plain(value, name)
    if array.ndim != 1:
        raise DataError(f"{name} have shape {array.shape}; needs vectors with one label for each atom, (n,)")
    # a list of text and NaN becomes an array of text, in which NaN is the word "nan"
    entries = value if isinstance(value, (list, tuple)) and array.dtype.kind == "U" else array
    if entries is value or array.dtype.kind == "O":
        lacks = np.fromiter(map(_is_missing, entries), np.bool_, len(array))
    else:
        lacks = array != array
    if lacks.any():
        first = int(np.flatnonzero(lacks)[0])
        raise DataError(
            f"{name}: {int(lacks.sum())} of {len(array)} are missing (the first: {entries[first]}, of atom {first}); "
            "give these atoms a label of their own, or leave them out"
        )
    if array.dtype.kind == "O":  # arrays of one kind can be sorted
        try:
            np.unique(array)
        except TypeError as error:
            raise DataError(
                f"{name}: values that cannot be sorted ({error}); needs numbers or text alone, one label for each atom"
            ) from error
    return array


def _is_missing(label: Any) -> bool:
    """Whether a label is None, or equals no label: NaN, NaT, and pandas' NA, whose comparison is neither."""
    try:
        return label is None or bool(label != label)
    except TypeError:
        return True


def contingency(truth: Any, labels: Any) -> sparse.csr_array:
    """Number of atoms with each pair of labels.

    Parameters
    ----------
    truth, labels
        One label per atom, ``(n,)``: whole numbers, strings or other values that numpy can sort.

    Returns
    -------
    scipy.sparse.csr_array
        ``(C, K)`` counts: rows are the sorted distinct true labels, columns the sorted distinct labels.
    """
    a, b = as_labels(truth, "true labels"), as_labels(labels, "labels")
    if a.shape != b.shape:
        raise DataError(f"labels have shapes {a.shape} and {b.shape}; needs two vectors of one length")
    if len(a) == 0:
        raise DataError("there are no labels to compare")
    rows, i = np.unique(a, return_inverse=True)
    columns, j = np.unique(b, return_inverse=True)
    ones = np.ones(len(a), np.int64)
    table = sparse.coo_array((ones, (i, j)), shape=(len(rows), len(columns))).tocsr()
    table.sum_duplicates()
    return table


def adjusted_rand_index(truth: Any, labels: Any) -> float:
    """Share of pairs of atoms on which both agree, corrected for chance (Hubert and Arabie 1985).

    1 for equal partitions, about 0 for independent ones; ``(n,)`` labels each.
    """
    return rand_index_of_table(contingency(truth, labels))


def rand_index_of_table(table: Any) -> float:
    """:func:`adjusted_rand_index` of two partitions from the number of atoms with each pair of labels.

    ``table (C, K)`` are whole numbers, an array or a sparse array.
    """
    table = sparse.csr_array(table)
    n = int(table.sum())

    # Python integers: pairs of a billion atoms do not fit 64 bits when multiplied
    def pairs(counts: np.ndarray) -> int:
        return sum(int(c) * (int(c) - 1) // 2 for c in counts.ravel())

    both = pairs(table.data)
    first, second = pairs(np.asarray(table.sum(axis=1))), pairs(np.asarray(table.sum(axis=0)))
    total = n * (n - 1) // 2
    if total == 0:
        return 1.0
    expected = first * second / total
    most = (first + second) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)


def normalized_mutual_information(truth: Any, labels: Any) -> float:
    """Mutual information over the mean of the two entropies, in [0, 1]; ``(n,)`` labels each."""
    table = contingency(truth, labels)
    joint = table.data / table.sum()
    p, q = np.asarray(table.sum(axis=1)) / table.sum(), np.asarray(table.sum(axis=0)) / table.sum()
    i, j = table.tocoo().coords
    information = float(joint @ (np.log(joint) - np.log(p[i]) - np.log(q[j])))
    mean_entropy = float(-(p @ np.log(p) + q @ np.log(q)) / 2)
    if mean_entropy == 0:
        return 1.0
    return float(np.clip(information / mean_entropy, 0.0, 1.0))


def majority_accuracy(truth: Any, labels: Any) -> float:
    """Share of atoms whose true label is the most frequent one of their cluster (purity); ``(n,)`` labels each.

    Many clusters per true label cost nothing; one cluster per atom gives 1.
    """
    table = contingency(truth, labels)
    return float(table.max(axis=0).toarray().sum() / table.sum())


def aligned_accuracy(truth: Any, labels: Any) -> float:
    """Share of atoms labelled right under the best one-to-one match of clusters to true labels.

    The match is found by the Hungarian method; clusters left over are wrong altogether.  ``(n,)`` labels each.
    """
    table = contingency(truth, labels).toarray()
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / table.sum())


def match_labels(
    truth: Any, labels: Any, rule: Literal["one-to-one", "many-to-one"] = "one-to-one", *, ignore: Any = ()
) -> dict[Any, Any]:
    """True label that each label stands for.

    Parameters
    ----------
    truth, labels
        One label per atom or step, ``(n,)``.
    rule
        ``"one-to-one"``: the match with most agreement (Hungarian method); labels that are left over stand for
        None.  ``"many-to-one"``: the true label with which each overlaps most (thesis 6.6.3), however many labels
        share it.
    ignore
        True labels to ignore, such as background; atoms with them are left out.

    Returns
    -------
    dict
        From every label that occurs to a true label, or None.
    """
    if rule not in ("one-to-one", "many-to-one"):
        raise SettingError(f'rule={rule!r}: needs "one-to-one" or "many-to-one"')
    a, b = _counted(truth, labels, ignore)
    table = contingency(a, b).toarray()
    names, found = np.unique(a).tolist(), np.unique(b).tolist()
    matched: dict[Any, Any] = dict.fromkeys(np.unique(np.asarray(labels)).tolist())
    if rule == "many-to-one":
        return matched | {label: names[row] for label, row in zip(found, table.argmax(axis=0), strict=True)}
    rows, columns = linear_sum_assignment(table, maximize=True)
    # a match of labels without a common atom does not count
    return matched | {found[j]: names[i] for i, j in zip(rows, columns, strict=True) if table[i, j] > 0}


def hamming_distance(
    truth: Any, labels: Any, rule: Literal["one-to-one", "many-to-one"] = "one-to-one", *, ignore: Any = ()
) -> float:
    """Share of atoms or steps whose label stands for another than the true one, after the best alignment.

    ``(n,)`` labels each; ``rule`` and ``ignore`` as in :func:`match_labels`.  0: all right.  One-to-one, every
    superfluous state costs its steps; many-to-one it does not (thesis 6.6.1 and 6.6.3).
    """
    a, b = _counted(truth, labels, ignore)
    if rule == "many-to-one":
        return 1.0 - majority_accuracy(a, b)
    if rule != "one-to-one":
        raise SettingError(f'rule={rule!r}: needs "one-to-one" or "many-to-one"')
    return 1.0 - aligned_accuracy(a, b)


def _counted(truth: Any, labels: Any, ignore: Any) -> tuple[np.ndarray, np.ndarray]:
    """Labels of the atoms whose true label counts."""
    a, b = plain(truth, "true labels"), as_labels(labels, "labels")
    if a.shape == b.shape and np.size(ignore):
        counts = ~np.isin(a, np.asarray(ignore))
        a, b = a[counts], b[counts]
        if len(a) == 0:
            raise DataError(f"all true labels are among the labels to ignore, {ignore!r}")
    return a, b
