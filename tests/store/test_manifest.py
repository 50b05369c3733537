"""The list of batches of a run's data: it grows, it is whole or as long as it was, and it is bound to its data."""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest

from bnp_dask.errors import SettingError, StoreError
from bnp_dask.store import DamagedError, Manifest, RunStore, Versions
from bnp_dask.store.files import pack, unpack
from bnp_dask.store.manifest import ROW, GrowthLog, version_named

WHO = {"data": {"path": "x.zarr", "n_atoms": 30}, "fingerprint": None}


class Killed(BaseException):
    """What a kill would do: no handler sees it."""


def rows(first, n):
    out = np.zeros(n, ROW)
    out["index"] = np.arange(first, first + n)
    out["checksum"] = 2**32 - 1 - out["index"].astype(np.int64)
    out["weight"] = out["index"] / 3
    return out


def grow(manifest, n, reasons=None):
    first = len(manifest)
    manifest.append(rows(first, n), {"mean": np.full(2, first + n)}, reasons or {})


def check(manifest, n):
    assert len(manifest) == n
    np.testing.assert_array_equal(manifest.rows, rows(0, n))
    np.testing.assert_array_equal(manifest.arrays.get("mean", np.zeros(2)), np.full(2, n))


@pytest.mark.parametrize("folder", ["disk", "memory"])
def test_it_grows_and_comes_back(tmp_path, folder):
    folder = tmp_path / "manifest" if folder == "disk" else None
    made = Manifest(folder, WHO) if folder is None else Manifest.open(folder, WHO)
    check(made, 0)
    grow(made, 3)
    grow(made, 1, {3: "cannot be read"})
    grow(made, 2, {4: "nor this"})
    check(made, 6)
    assert made.reasons == {3: "cannot be read", 4: "nor this"}
    if folder is None:
        return
    again = Manifest.open(folder, WHO)
    check(again, 6)
    assert (again.reasons, again.to_json()) == (made.reasons, made.to_json())
    grow(again, 4)
    check(Manifest.of_key(folder, made.key), 10)
    assert sorted(p.suffix for p in folder.iterdir()) == [".npz", ".rows"]


def test_other_data_have_another(tmp_path):
    grow(Manifest.open(tmp_path, WHO), 3)
    other = {**WHO, "fingerprint": {"files": 1}}
    check(Manifest.open(tmp_path, other), 0)
    check(Manifest.open(tmp_path, WHO), 3)
    with pytest.raises(DamagedError, match=r"12345678.npz is missing"):
        Manifest.of_key(tmp_path, "12345678")


def test_data_of_one_checksum_do_not_mix(tmp_path):
    made = Manifest.open(tmp_path, WHO)
    grow(made, 3)
    head = tmp_path / f"{made.key}.npz"
    arrays, meta = unpack(head.read_bytes(), head)
    head.write_bytes(pack(arrays, {**meta, "identity": "of others"}))
    check(Manifest.open(tmp_path, WHO), 0)


@pytest.mark.parametrize("name", ["replace", "fsync"])
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_call(tmp_path, monkeypatch, name, after):
    original = getattr(os, name)
    for n in range(20):
        folder = tmp_path / str(n)
        grow(Manifest.open(folder, WHO), 3)
        calls = [0]

        def call(*args, calls=calls, n=n):
            calls[0] += 1
            if calls[0] > n:
                if after and calls[0] == n + 1:
                    original(*args)
                raise Killed
            return original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, call)
            try:
                grow(Manifest.open(folder, WHO), 2)
                finished = True
            except Killed:
                finished = False
        found = Manifest.open(folder, WHO)
        assert len(found) in (3, 5)
        check(found, len(found))
        grow(found, 1)
        check(Manifest.open(folder, WHO), len(found))
        if finished:
            break
    assert finished
    assert n >= 1


@pytest.mark.parametrize("suffix", [".rows", ".npz"])
def test_what_rotted_is_refused(tmp_path, suffix):
    made = Manifest.open(tmp_path, WHO)
    grow(made, 3)
    file = tmp_path / f"{made.key}{suffix}"
    data = file.read_bytes()
    for wrong in (data[:-1], data[:9] + bytes([data[9] ^ 1]) + data[10:]):
        file.write_bytes(wrong)
        with pytest.raises(DamagedError, match=f"{file.name} is damaged"):
            Manifest.open(tmp_path, WHO)
    file.unlink()
    if suffix == ".rows":
        with pytest.raises(DamagedError, match=f"{file.name} cannot be read"):
            Manifest.open(tmp_path, WHO)


def test_a_newer_version(tmp_path):
    made = Manifest.open(tmp_path, WHO)
    grow(made, 3)
    head = tmp_path / f"{made.key}.npz"
    arrays, meta = unpack(head.read_bytes(), head)
    head.write_bytes(pack(arrays, {**meta, "version": 99}))
    with pytest.raises(StoreError, match="format version 99, this bnp-dask reads up to 1; upgrade"):
        Manifest.open(tmp_path, WHO)


def test_the_next_version_is_a_newer_one_too(tmp_path):
    made = Manifest.open(tmp_path, WHO)
    grow(made, 3)
    head = tmp_path / f"{made.key}.npz"
    arrays, meta = unpack(head.read_bytes(), head)
    head.write_bytes(pack(arrays, {**meta, "version": meta["version"] + 1}))
    with pytest.raises(StoreError, match="format version 2, this bnp-dask reads up to 1; upgrade"):
        Manifest.open(tmp_path, WHO)


def test_an_empty_one_takes_the_place_of_another(tmp_path):
    made = Manifest.open(tmp_path, WHO)
    grow(made, 3)
    anew = made.emptied()
    check(anew, 0)
    check(Manifest.open(tmp_path, WHO), 3)
    grow(anew, 2)
    check(Manifest.open(tmp_path, WHO), 2)


def test_a_hundred_thousand_batches_open_at_once(tmp_path):
    made = Manifest.open(tmp_path, WHO)
    for _ in range(10):
        grow(made, 10_000)
    check(Manifest.open(tmp_path, WHO), 100_000)
    assert (tmp_path / f"{made.key}.rows").stat().st_size == 48 * 100_000


def test_what_was_appended_is_what_a_checkpoint_refers_to(tmp_path):
    """Each log is read again as it was, however much was appended later, also by a run that ended there."""
    rows = np.zeros(5, ROW)
    for name in ROW.names:
        rows[name] = np.arange(1, 6)
    pieces = [
        {"place": None, "name": "week 1", "n_batches": 2},
        {"place": None, "name": "week 2", "n_batches": 3, "files": ["a", "b"]},
    ]
    first = GrowthLog.empty(tmp_path / "growth").appended(rows[:2], pieces[:1])
    both = first.appended(rows[2:], pieces[1:])
    in_memory = GrowthLog.empty(None).appended(rows[:2], pieces[:1]).appended(rows[2:], pieces[1:])
    for log, n in ((first, 1), (both, 2), (in_memory, 2)):
        assert log.rows.tobytes() == rows[: (0, 2, 5)[n]].tobytes() and list(log.pieces) == pieces[:n]
    for log in (first, both):
        found = GrowthLog.open(tmp_path / "growth", log.to_json())
        assert found.rows.tobytes() == log.rows.tobytes() and found.pieces == log.pieces
        assert found.to_json() == log.to_json()
    piece = {"place": None, "name": "other", "n_batches": 1}
    other = GrowthLog.open(tmp_path / "growth", first.to_json()).appended(rows[4:], [piece])
    found = GrowthLog.open(tmp_path / "growth", other.to_json())
    assert [piece["name"] for piece in found.pieces] == ["week 1", "other"]
    assert found.rows.tobytes() == rows[[0, 1, 4]].tobytes()
    with pytest.raises(DamagedError):
        GrowthLog.open(tmp_path / "nowhere", both.to_json())


def test_a_log_that_does_not_fit_its_rows_is_damaged(tmp_path):
    piece = {"place": None, "name": "week", "n_batches": 2}
    log = GrowthLog.empty(tmp_path).appended(rows(0, 3), [piece])
    with pytest.raises(DamagedError, match=r"grown.jsonl is damaged \(its pieces have other batches than grown.rows\)"):
        GrowthLog.open(tmp_path, log.to_json())
    short = GrowthLog.empty(tmp_path / "other").appended(rows(0, 2), [piece])
    data = (tmp_path / "other" / "grown.rows").read_bytes()[:-1]
    saved = {**short.to_json(), "rows": {"bytes": len(data), "crc32": zlib.crc32(data)}}
    with pytest.raises(DamagedError, match=r"grown.rows is damaged \(95 bytes; needs 48 for each batch\)"):
        GrowthLog.open(tmp_path / "other", saved)
    wrong = GrowthLog.empty(tmp_path / "third").appended(rows(0, 2), [{**piece, "n_batches": -2}])
    with pytest.raises(DamagedError, match=r"grown.jsonl, line 1, is damaged"):
        GrowthLog.open(tmp_path / "third", wrong.to_json())


def test_what_is_no_manifest_is_refused_by_its_name(tmp_path):
    made = Manifest.open(tmp_path, WHO)
    assert made.name == str(tmp_path / f"{made.key}.npz") and Manifest(None, WHO).name == "the list of batches"
    grow(made, 3, {1: "cannot be read"})
    head = tmp_path / f"{made.key}.npz"
    arrays, meta = unpack(head.read_bytes(), head)
    for changes, words in (
        ({"format": "another"}, "it is no manifest"),
        ({"reasons": {"1": "cannot be read"}}, "reasons is .*another program wrote it"),
        ({"identity": None}, "identity is .*another program wrote it"),
    ):
        head.write_bytes(pack(arrays, {**meta, **changes}))
        with pytest.raises(DamagedError, match=rf"{head.name} is damaged \({words}"):
            Manifest.of_key(tmp_path, made.key)
    with pytest.raises(SettingError, match="list of batches: '../elsewhere' is no name of a file"):
        Manifest.of_key(tmp_path, "../elsewhere")


RECORD = {"checkpoint": 3, "before": None, "ids": [1], "counts": [2.5], "pieces": [], "moves": []}


def test_versions_are_records_posteriors_and_a_pointer(tmp_path):
    versions = Versions(tmp_path)
    assert versions.current is None and versions.numbers() == versions.kept() == []
    for number in (2, 0, 11):
        versions.write(number, {**RECORD, "checkpoint": number})
        versions.posterior(number).mkdir()
    for other in ("notes.zarr", "7.zarr.old", "notes.json", "7.json.old", "8"):
        (tmp_path / "versions" / other).touch()
    assert versions.numbers() == versions.kept() == [0, 2, 11]
    versions.keep([2, 99])
    assert versions.kept() == [2] and versions.numbers() == [0, 2, 11]
    assert versions.record(11)["checkpoint"] == 11 and versions.has(0) and not versions.has(1)
    versions.point_at(2)
    assert versions.current == 2
    versions.write(5, {name: value for name, value in RECORD.items() if name != "ids"})
    with pytest.raises(
        StoreError, match=r"00000005.json is damaged .*put it back from a copy, or name a version: .*@NUM"
    ):
        versions.record(5)
    versions.write(5, {**RECORD, "number": 5, "moves": [{"kind": "birth", "targets": [1], "others": "none"}]})
    with pytest.raises(StoreError, match=r"00000005.json is damaged .*moves\[0\]"):
        versions.record(5)
    (tmp_path / "VERSION.json").write_bytes(b"rotten")
    with pytest.raises(StoreError, match=r"VERSION.json is damaged .*name a version"):
        _ = versions.current
    with pytest.raises(StoreError, match=r"00000001.json is missing"):
        versions.record(1)


def test_a_path_names_a_run_or_one_of_its_versions(tmp_path):
    RunStore.create(tmp_path / "news", {}).close()
    RunStore.create(tmp_path / "news@7", {}).close()
    (tmp_path / "news@8").mkdir()
    of = Versions(tmp_path / "news")
    assert version_named(str(tmp_path / "news")) == (of, None)
    assert version_named(str(tmp_path / "news@3")) == (of, 3)
    assert version_named(str(tmp_path / "news@7")) == (Versions(tmp_path / "news@7"), None)  # a run of this name
    for none in ("news@8", "news@x", "news@", "none@3", "@3"):
        assert version_named(str(tmp_path / none)) is None
    assert version_named("https://host/news@3") is None
