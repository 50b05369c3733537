"""Changes of clusters between two versions of a run, by id."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bnp_dask.errors import SettingError, StoreError
from bnp_dask.inputs.settings import number_from, path_text, whole_number
from bnp_dask.store import Versions
from bnp_dask.store.layout import read_settings, run_folder

KINDS = ("born", "returned", "split", "merged", "deleted", "dormant", "larger share", "smaller share")


@dataclass(frozen=True)
class Change:
    """A change of one cluster.

    Parameters
    ----------
    kind
        ``"born"``; ``"returned"`` under the id that it had before it was laid away; ``"dormant"``: it faded and was
        laid away; ``"split"`` into others, ``"merged"`` into another, ``"deleted"``, its atoms given to others: the id
        is gone; ``"larger share"`` or ``"smaller share"`` of all atoms: a cluster may have more atoms than before and a
        smaller share, if others gained more.
    cluster
        Its id.
    others
        Ids of the clusters that it came from, or that took its atoms over.
    before, after
        Its atoms (for topics: tokens) at the earlier and at the later version.
    share_before, share_after
        The same as shares of all atoms, 0 to 1.
    """

    kind: str
    cluster: int
    others: tuple[int, ...]
    before: float
    after: float
    share_before: float = 0.0
    share_after: float = 0.0


def changes(store: str | os.PathLike[str], since: int | None = None, *, share: float = 0.1) -> tuple[Change, ...]:
    """Changes of clusters since a version of a run, up to the version in force.

    Parameters
    ----------
    store
        Run directory.
    since
        Number of the earlier version; None for the version before the one in force.
    share
        Relative change of a cluster's share in all atoms from which on it is listed.

    Returns
    -------
    tuple of Change
        Births first, then clusters that are gone, then clusters whose share changed, each by id.

    Raises
    ------
    SettingError
        The version in force does not come from version ``since``.
    StoreError
        There is no run, or it was never updated.
    """
    folder = run_folder(path_text("store", store))
    read_settings(folder)
    versions = Versions(folder)
    now = versions.current
    if now is None:
        raise StoreError(f"{folder} was never updated, so that there are no versions; update() makes them")
    number_from("share", share, 0.0)
    first = versions.record(now)
    if since is None:
        since = now if first["before"] is None else first["before"]
    records, number = [], now
    while number != whole_number("since", since):
        records.append(record := versions.record(number))
        if record["before"] is None:
            raise SettingError(f"since={since}: version {now} does not come from it; it comes from 0 to {now}")
        number = record["before"]
    events = [move for record in reversed(records) for move in record["moves"]]
    return changes_between(versions.record(number), first, events, share)


def changes_between(
    earlier: Mapping[str, Any], later: Mapping[str, Any], events: Iterable[Mapping[str, Any]], share: float
) -> tuple[Change, ...]:
    """Changes between two records of versions, ``events`` being the accepted moves in between, in order."""
    old = dict(zip(earlier["ids"], earlier["counts"], strict=True))
    new = dict(zip(later["ids"], later["counts"], strict=True))
    events = list(events)
    origin, fate = _by_cluster(events)
    back = {i for event in events if event["kind"] == "return" for i in event["targets"]}
    whole = [max(sum(counts.values()), 1e-300) for counts in (old, new)]
    born = [
        Change("returned" if i in back else "born", i, origin.get(i, ()), 0.0, new[i], 0.0, new[i] / whole[1])
        for i in sorted(new.keys() - old.keys())
    ]
    gone = [
        Change(kind, i, others, old[i], 0.0, old[i] / whole[0], 0.0)
        for i in sorted(old.keys() - new.keys())
        for kind, others in [fate.get(i, ("deleted", ()))]
    ]
    sizes = []
    for i in sorted(old.keys() & new.keys()):
        a, b = old[i] / whole[0], new[i] / whole[1]
        if abs(b - a) > share * max(a, 1e-300):
            sizes.append(Change("larger share" if b > a else "smaller share", i, (), old[i], new[i], a, b))
    return (*born, *gone, *sizes)


def _by_cluster(
    events: Iterable[Mapping[str, Any]],
) -> tuple[dict[int, tuple[int, ...]], dict[int, tuple[str, tuple[int, ...]]]]:
    """Origin of each new cluster, and fate of each that may be gone."""
    origin: dict[int, tuple[int, ...]] = {}
    fate: dict[int, tuple[str, tuple[int, ...]]] = {}
    for event in events:
        targets, others = tuple(event["targets"]), tuple(event["others"])
        if event["kind"] == "merge":
            fate[targets[1]] = ("merged", targets[:1])
        elif event["kind"] == "delete":
            fate |= dict.fromkeys(targets, ("deleted", others))
        elif event["kind"] == "dormant":
            fate |= dict.fromkeys(targets, ("dormant", ()))
        elif event["kind"] == "birth":
            origin |= dict.fromkeys(others, targets)
            fate |= dict.fromkeys(targets, ("split", others))
    return origin, fate
