"""Packs: however long a run grows, its files stay few; readers do not break, and kills lose nothing."""

from __future__ import annotations

import os
import shutil
import threading
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bnp_dask.errors import StoreError
from bnp_dask.store import Listing, RunStore, Versions, checkpoint, manifest, place_of, run, run_folder
from bnp_dask.store.place import DamagedError
from tests.stopping import Killed


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """What takes hundreds of files takes a few, and none waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(run, "MOST_LOOSE", 8)
    monkeypatch.setattr(manifest, "MOST_LOOSE", 8)


def arrays_of(batch, visit):
    return {"a": np.arange(4.0) + batch + visit / 100}


class Grown:
    """A run that takes in one batch with each update, and visits an older one."""

    def __init__(self, path, store=None):
        self.store = RunStore.create(path, {}) if store is None else store
        self.listed, self.visits = {}, {}
        self.versions = Versions(self.store.path)

    def at(self, path):
        """The same run, copied to another place."""
        store = RunStore.open(path)
        store.load()
        other = Grown(path, store)
        other.listed, other.visits = dict(self.listed), dict(self.visits)
        return other

    def visit(self, batch):
        visit = self.visits[batch] = self.visits.get(batch, -1) + 1
        self.listed[batch] = visit, self.store.put_summary(batch, visit, arrays_of(batch, visit))

    def update(self, number, pack=True):
        self.visit(number)
        self.visit((7 * number) % (number + 1))
        record = {"checkpoint": number + 1, "before": None, "ids": [], "counts": [], "pieces": [], "moves": []}
        self.versions.write(number, record)
        self.store.commit({"number": number}, {}, [], self.listing())
        if pack:
            self.store.pack()
            self.versions.pack()

    def listing(self):
        return Listing.of((batch, visit, receipt) for batch, (visit, receipt) in self.listed.items())


def check(path):
    """All that the newest checkpoint lists can be read; how many batches these are."""
    store = RunStore.view(path)
    listing = store.load().listing
    for batch, visit, receipt in listing.entries():
        np.testing.assert_array_equal(store.get_summary(batch, visit, receipt)[0]["a"], arrays_of(batch, visit)["a"])
    for number in range(len(listing)):
        assert Versions(store.path).record(number)["checkpoint"] == number + 1
        assert Versions(store.path).has(number)
    assert not Versions(store.path).has(len(listing))
    return len(listing)


def n_files(path):
    return sum(len(names) for _, _, names in os.walk(path))


def test_files_stay_few_however_many_updates_there_are(tmp_path):
    grown, counts = Grown(tmp_path / "run"), []
    for number in range(80):
        grown.update(number)
        counts.append(n_files(tmp_path / "run"))
    assert max(counts[40:]) <= max(counts[:40]) + 6
    assert max(counts) < 60
    assert check(tmp_path / "run") == 80
    grown.store.close()
    reopened = RunStore.open(tmp_path / "run")
    reopened.load()
    reopened.pack()
    assert check(tmp_path / "run") == 80


def test_a_run_on_an_object_store_is_packed_too(url):
    grown = Grown(url)
    for number in range(20):
        grown.update(number)
    assert check(url) == 20
    folder = run_folder(url)
    assert len(place_of(folder).names(folder / "summaries" / "00000")) < 16
    assert place_of(folder).names(folder / "summaries" / "packs")
    grown.store.close()


@pytest.mark.first_case
@pytest.mark.parametrize("name", ["replace", "fsync", "unlink"])
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_call_of_packing(tmp_path, monkeypatch, name, after):
    """Before or after the n-th call of a function, for every n: all is there, and the run goes on and packs again."""
    module = Path if name == "unlink" else os
    original = getattr(module, name)
    grown = Grown(tmp_path / "run")
    for number in range(11):
        grown.update(number, pack=number != 10)  # packed once before, so that packs are joined
    grown.store.close()
    for n in range(60):
        path, calls = tmp_path / f"run{n}", [0]
        shutil.copytree(tmp_path / "run", path)
        again = grown.at(path)

        def call(*args, calls=calls, n=n, **kwargs):
            calls[0] += 1
            if calls[0] > n:
                if after and calls[0] == n + 1:
                    original(*args, **kwargs)
                raise Killed
            return original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(run, "MOST_LOOSE", 2)
            patch.setattr(manifest, "MOST_LOOSE", 2)
            patch.setattr(module, name, call)
            try:
                again.store.pack()
                again.versions.pack()
                finished = True
            except Killed:
                finished = False
        again.store.close()
        assert check(path) == 11
        again = grown.at(path)
        again.update(11, pack=False)
        with monkeypatch.context() as patch:
            patch.setattr(run, "MOST_LOOSE", 1)
            again.store.pack()
        again.store.close()
        assert check(path) == 12
        assert not list(path.rglob(".tmp-*"))
        held = [tuple(key) for key in again.store.summaries.packs.keys().tolist()]
        assert len(held) == len(set(held))  # what lies in two packs after a kill lies in one
        if finished:
            break
    assert finished
    assert n >= 2


def test_readers_that_are_open_find_everything_while_packing_goes_on(tmp_path):
    grown = Grown(tmp_path / "run")
    grown.update(0)
    listing, view = grown.listing(), RunStore.view(tmp_path / "run")
    grown.store.pin([1])  # somebody reads version 0 all the time
    errors, reads, done = [], [0], threading.Event()

    def read():
        while not done.is_set():
            try:
                for batch, visit, receipt in listing.entries():
                    view.get_summary(batch, visit, receipt)
                for number in range(3):
                    if Versions(view.path).has(number):
                        Versions(view.path).record(number)
                reads[0] += 1
            except Exception as error:
                errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 40):
            grown.update(number)
    finally:
        done.set()
        reader.join()
    assert not errors and reads[0] > 0


def test_what_no_checkpoint_needs_is_in_no_file_once_it_is_purged(tmp_path):
    grown = Grown(tmp_path / "run")
    secret = {"a": np.array([np.pi * 1e7, np.e * 1e7])}
    for number in range(30):
        grown.update(number)
        if number == 2:
            visit = grown.visits[1] = grown.visits[1] + 1
            grown.listed[1] = visit, grown.store.put_summary(1, visit, secret)
    grown.listed.pop(1)
    for _ in range(2):  # the last two checkpoints are kept
        grown.store.commit({"number": 30}, {}, [], grown.listing())
    grown.store.pack(purges=True)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(secret["a"].tobytes() in path.read_bytes() for path in files)
    keys = grown.store.summaries.keys()
    assert not [key for key in keys if key[0] == 1]


def test_a_damaged_pack_is_named_and_nothing_of_it_is_believed(tmp_path):
    grown = Grown(tmp_path / "run")
    for number in range(12):
        grown.update(number)
    for place in (-1, 40):
        (pack,) = (tmp_path / "run" / "summaries" / "packs").iterdir()
        data = pack.read_bytes()
        pack.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place:][1:])
        checkpoint._index.cache_clear()
        with pytest.raises(StoreError, match=r"\.pack is damaged"):
            for entry in grown.listing().entries():
                RunStore.view(tmp_path / "run").get_summary(*entry)
        pack.write_bytes(data)
    checkpoint._index.cache_clear()
    assert check(tmp_path / "run") == 12


def test_packs_are_cut_where_they_become_large(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "LARGEST", 1500)
    grown = Grown(tmp_path / "run")
    for number in range(40):
        grown.update(number)
    assert len(list((tmp_path / "run" / "summaries" / "packs").iterdir())) > 3
    assert check(tmp_path / "run") == 40


def test_of_two_files_of_one_visit_the_one_with_the_checksum_is_found(tmp_path):
    """A visit that is repeated after a kill may leave other numbers under the same name."""
    contents = {zlib.crc32(data): data for data in (b"before the kill", b"after it")}
    found = checkpoint.Packs(tmp_path)
    found.join(
        [((4, 2, crc), partial(bytes, data)) for crc, data in contents.items()],
        lambda keys: np.ones(len(keys), np.bool_),
    )
    for crc, data in contents.items():
        assert found.read(4, 2, crc) == data
    assert found.read(4, 2, 0) is None


def everything(keys):
    return np.ones(len(keys), np.bool_)


def test_a_file_of_any_content_comes_back_from_packs_that_were_joined(tmp_path):
    """Also an empty one, whose checksum is 0, of batch 0; and a key without a checksum is one of its files."""
    found = checkpoint.Packs(tmp_path)
    assert found.read(0, 0) is None and found.keys().shape == (0, 3) and found.indexes() == []
    contents = {(0, 0): b"", (0, 3): b"three", (2**31, 2**40): b"far", (7, 0): bytes(range(256))}
    for key, data in contents.items():
        found.join([((*key, zlib.crc32(data)), partial(bytes, data))], everything)
    for key, data in contents.items():
        assert found.read(*key) == found.read(*key, zlib.crc32(data)) == data
        assert found.read(*key, zlib.crc32(data) ^ 1) is None
    assert sorted(map(tuple, found.keys()[:, :2].tolist())) == sorted(contents)
    assert sum(index.nbytes for index in found.indexes()) == sum(map(len, contents.values()))
    assert sum(map(len, found.indexes())) == 4
    again = ((7, 9, zlib.crc32(b"again")), partial(bytes, b"again"))
    found.join([again, again], everything)
    assert len(found.keys()) == 5 and found.read(7, 9) == b"again"
    found.purge(lambda keys: keys[:, 1] != 9)
    found.join([], lambda keys: keys[:, 0] == 7)
    found.purge(lambda keys: keys[:, 0] == 7)
    assert found.read(7, 0) == contents[7, 0] and found.read(0, 3) is None and len(found.keys()) == 1
    found.purge(lambda keys: keys[:, 0] == 8)
    assert found.indexes() == [] and not list(found.folder.iterdir())


def test_the_largest_pack_stays_while_few_files_come_and_goes_once_half_is_unneeded(tmp_path):
    found = checkpoint.Packs(tmp_path)

    def join(first, n, alive=everything):
        contents = [(i, str(i).encode()) for i in range(first, first + n)]
        found.join([((i, 0, zlib.crc32(data)), partial(bytes, data)) for i, data in contents], alive)
        return sorted(len(index) for index in found.indexes())

    assert join(0, 20) == [20]
    assert join(20, 9) == [9, 20]  # 20 are more than twice 9
    assert join(29, 1, lambda keys: keys[:, 0] >= 10) == [1, 9, 20]  # half of the largest is needed
    assert join(30, 1) == [2, 9, 20]  # 1 is not more than twice 1
    assert join(31, 1) == [3, 9, 20]  # nor 2, but 9 are more than twice 3
    assert join(32, 1, lambda keys: keys[:, 0] >= 11) == [3, 9, 10]  # less than half is needed
    assert [found.read(i, 0) for i in (11, 20, 28, 32)] == [b"11", b"20", b"28", b"32"]
    assert found.read(10, 0) is None


def test_summaries_of_one_visit_in_packs_are_told_apart_by_their_receipts(tmp_path):
    files = checkpoint.SummaryFiles(tmp_path)
    receipts = [files.put(3, 1, {"a": np.full(2, value)}, {"value": value}) for value in (1.0, 2.0)]
    kept = [(3, 1, receipt) for receipt in receipts]
    reads = [((b, v, r.crc32), partial(files.read, b, v, r)) for b, v, r in kept]
    files.packs.join(reads, everything)
    for receipt in receipts:
        files.path(3, 1, receipt).unlink()
    for receipt, value in zip(receipts, (1.0, 2.0), strict=True):
        arrays, meta = files.get(3, 1, receipt)
        assert meta == {"value": value} and arrays["a"].tolist() == [value] * 2
    assert files.get(3, 1)[1]["value"] in (1.0, 2.0)
    with pytest.raises(StoreError, match="summary of batch 3 at visit 2 cannot be used"):
        files.get(3, 2)
    assert sorted(files.keys()) == [(3, 1)] * 2


def test_a_pack_that_goes_while_it_is_read_is_looked_for_again_and_one_that_stays_damaged_is_named(
    tmp_path, monkeypatch
):
    found, tries = checkpoint.Packs(tmp_path), []
    found.join([((1, 0, zlib.crc32(b"one")), partial(bytes, b"one"))], everything)
    original = checkpoint.Packs.indexes

    def late(self):
        tries.append(self)
        if len(tries) < 3:
            raise checkpoint.DamagedError("a pack is missing")
        return original(self)

    monkeypatch.setattr(checkpoint.Packs, "indexes", late)
    assert found.read(1, 0) == b"one" and len(tries) == 3
    monkeypatch.setattr(checkpoint.Packs, "indexes", original)
    (pack,) = found.folder.iterdir()
    data = pack.read_bytes()
    for wrong, words in (
        (data[:20], "it is cut off"),
        (data[:-1], "a file in it does not fit its checksum"),
        (b"B" + data[1:], "its checksum does not fit"),
    ):
        pack.write_bytes(wrong)
        checkpoint._index.cache_clear()
        with pytest.raises(checkpoint.DamagedError, match=words):
            found.read(1, 0)
    pack.write_bytes(data)
    pack.rename(pack.with_name("00000000-000001.pack"))  # the name is the checksum
    with pytest.raises(checkpoint.DamagedError, match="its checksum does not fit"):
        found.read(1, 0)


def test_a_run_packs_from_a_number_of_files_on_and_only_what_is_in_files(tmp_path):
    grown = Grown(tmp_path / "run")
    grown.store.pack()  # nothing was committed
    for number in range(7):
        grown.visit(number)
    folder = tmp_path / "run" / "summaries"

    def packed():
        grown.store.commit({}, {}, [], grown.listing())
        grown.store.pack()
        return len(grown.store.summaries.packs.keys()), len(list(folder.glob("0*/*")))

    assert packed() == (0, 7)
    grown.visit(7)
    assert packed() == (8, 0)
    for number in range(8, 15):
        grown.visit(number)
    assert packed() == (8, 7)
    grown.visit(15)
    assert packed() == (16, 0)
    (pack, *_) = (folder / "packs").iterdir()
    pack.write_bytes(pack.read_bytes()[:-1] + b"?")
    pack.rename(pack.with_name("00000000-000001.pack"))
    with pytest.raises(StoreError, match=r"\.pack is damaged .*; put the file back from a copy"):
        grown.store.pack()
    with pytest.raises(StoreError, match=r"cannot pack summaries: .*\.pack is damaged .*; the run is as it was"):
        grown.store.pack(purges=True)
    grown.store.close()
    with pytest.raises(StoreError, match="opened for reading or closed"):
        grown.store.pack()


# -- by hand -------------------------------------------------------------------------------------------------------
def test_of_the_records_of_versions_the_older_half_is_packed_once_there_are_many(tmp_path):
    """From eight files on, four; those of the newest versions stay files."""
    versions, record = Versions(tmp_path), {"checkpoint": 0, "before": None, "ids": [], "counts": [], "pieces": []}

    def loose():
        return sorted(int(path.stem) for path in (tmp_path / "versions").glob("*.json"))

    for number in range(12):
        versions.write(number, {**record, "moves": [], "when": f"day {number}"})
        versions.pack()
        first = 0 if number < 7 else 4 if number < 11 else 8
        assert loose() == list(range(first, number + 1))
        assert versions.numbers() == list(range(number + 1))
    assert [versions.record(number)["when"] for number in (0, 5, 11)] == ["day 0", "day 5", "day 11"]
    assert versions.has(3) and not versions.has(12)


def test_files_are_put_in_packs_up_to_a_limit_and_a_larger_one_is_alone(monkeypatch):
    monkeypatch.setattr(checkpoint, "LARGEST", 10)
    sizes = [4, 4, 2, 4, 12, 1, 10, 0, 1]
    files = (((i, 0, 0), bytes(n)) for i, n in enumerate(sizes))
    found = [[len(data) for _, data in batch] for batch in checkpoint._batches(files)]
    assert found == [[4, 4, 2], [4], [12], [1], [10, 0], [1]]
    assert list(checkpoint._batches(iter([]))) == []


def test_keys_of_files_tell_their_first_number_and_their_content_apart():
    rows = np.array([[3, 0, 7], [3, 1, 7], [3, 0, 8], [4, 0, 7], [3, 0, 2**32 - 1]])
    keys = checkpoint.keys_of(rows)
    assert keys[0] == keys[1] and len(set(keys.tolist())) == 4


def test_bytes_and_receipts_that_are_unknown_count_nothing(tmp_path):
    known, unknown = checkpoint.Receipt(70, 5), checkpoint.NO_RECEIPT
    listing = Listing.of([(4, 1, known), (0, 2, unknown), (2, 0, checkpoint.Receipt(30, 9))])
    assert listing.batches.tolist() == [0, 2, 4] and listing.nbytes == 100
    files = checkpoint.SummaryFiles(tmp_path)
    for key in ((-1, 0), (0, -1)):
        with pytest.raises(StoreError, match="both must be 0 or more"):
            files.put(*key, {"a": np.zeros(1)})
    data = checkpoint.pack({"a": np.zeros(2)}, {"key": [1, 2], "meta": {}})
    crc = checkpoint.crc_of_packed(data)
    assert crc == zlib.crc32(data)
    meta = {"key": [1, 2]}
    for receipt in (checkpoint.Receipt(len(data), crc), checkpoint.Receipt(-1, crc), checkpoint.Receipt(len(data), -1)):
        checkpoint._require_same(tmp_path, (1, 2), receipt, meta, data)
    for receipt in (checkpoint.Receipt(len(data) + 1, crc), checkpoint.Receipt(len(data), crc + 1)):
        with pytest.raises(DamagedError, match="holds other values"):
            checkpoint._require_same(tmp_path, (1, 2), receipt, meta, data)
    with pytest.raises(DamagedError, match="holds batch and visit"):
        checkpoint._require_same(tmp_path, (1, 3), unknown, meta, data)
