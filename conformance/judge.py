"""Comparison of an answer with what a case expects, one rule for each kind of expectation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.special import logsumexp

from conformance.cases import Case
from conformance.scripts import SOUND

Verdict = tuple[bool, str]


def judge(case: Case, quantity: str, value: Any) -> Verdict:
    """Whether the value of a quantity is as expected, and by how much it is not."""
    rule = case.expect[quantity]
    return RULES[rule["rule"]](case, rule, value)


def _expected(case: Case, rule: Mapping[str, Any]) -> np.ndarray:
    return np.asarray(case.outputs[rule["values"]], float)


def _equal(case: Case, rule: Mapping[str, Any], value: Any) -> Verdict:
    expected, found = _expected(case, rule), np.asarray(value, float)
    if found.shape != expected.shape:
        return False, f"shape {found.shape}, expected {expected.shape}"
    if rule.get("up_to") == "constant":
        expected, found = expected - expected.flat[0], found - found.flat[0]
    same = (found == expected) | (np.abs(found - expected) <= rule["atol"] + rule["rtol"] * np.abs(expected))
    if same.all():
        return True, ""
    with np.errstate(invalid="ignore"):
        worst = np.unravel_index(
            np.argmax(np.where(same, -1.0, np.nan_to_num(np.abs(found - expected), nan=np.inf))), found.shape
        )
    return False, f"{found[worst]:.7g}, expected {expected[worst]:.7g}"


def _equal_of_labels(case: Case, rule: Mapping[str, Any], value: Any) -> Verdict:
    """``value``: pairs of labels ``(n,)`` and the library's number for them; labels are places in the table."""
    table = _expected(case, rule)
    worst = (0.0, "")
    for labels, found in value:
        expected = table[int("".join(str(int(z)) for z in labels), 2)]
        off = abs(found - expected) / (rule["atol"] + rule["rtol"] * abs(expected))
        worst = max(worst, (off, f"{found:.7g}, expected {expected:.7g}"))
    return worst[0] <= 1.0, worst[1]


def _script(case: Case, rule: Mapping[str, Any], value: Any) -> Verdict:
    """``value``: what became of each variant of a script, by name; good ones are listed in ``scripts.SOUND``."""
    bad = {name: number for name, number in value.items() if name not in SOUND and number}
    return not bad, ", ".join(f"{number} of {sum(value.values())} {name}" for name, number in sorted(bad.items()))


def _rises(case: Case, rule: Mapping[str, Any], value: Any) -> Verdict:
    found = np.asarray(value, float)
    steps = np.diff(found)
    if np.isfinite(found).all() and (steps >= -rule["atol"]).all():
        return True, ""
    number = int((~(steps >= -rule["atol"])).sum())
    return False, f"falls in {number} of {len(steps)} steps, by {-steps.min():.3g} nats at most"


def _sums_to_one(case: Case, rule: Mapping[str, Any], value: Any) -> Verdict:
    total = float(np.exp(logsumexp(np.asarray(value, float) + case.inputs["log_measure"])))
    return abs(total - 1.0) <= rule["atol"], f"sums to {total:.6g}"


def _at_most(case: Case, rule: Mapping[str, Any], value: Any) -> Verdict:
    limit = float(_expected(case, rule))
    return float(value) <= limit + rule["atol"], f"{float(value):.6g}, limit {limit:.6g}"


def _frequencies(case: Case, rule: Mapping[str, Any], value: Any) -> Verdict:
    """Draws of labels ``(S, n)`` in chains: shares of pairs together, within ``sigmas`` standard errors.

    Errors of shares come from means of 25 consecutive pieces, so that draws may depend on each other.
    """
    labels, expected = np.asarray(value), _expected(case, rule)
    pairs = np.triu_indices(labels.shape[1], 1)
    together = (labels[:, pairs[0]] == labels[:, pairs[1]]).astype(float)
    pieces = np.array([piece.mean(axis=0) for piece in np.array_split(together, 25)])
    error = np.maximum(pieces.std(axis=0, ddof=1) / 5.0, rule["least"])
    off = np.abs(together.mean(axis=0) - expected[pairs]) / error
    at = int(off.argmax())
    told = f"{together.mean(axis=0)[at]:.4f}, expected {expected[pairs][at]:.4f} (standard error {error[at]:.4f})"
    return bool((off <= rule["sigmas"]).all()), told


RULES: dict[str, Callable[[Case, Mapping[str, Any], Any], Verdict]] = {
    "at most": _at_most,
    "equal": _equal,
    "equal of labels": _equal_of_labels,
    "frequencies": _frequencies,
    "rises": _rises,
    "script": _script,
    "sums to one": _sums_to_one,
}
