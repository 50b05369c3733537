"""Atoms gathered for moves lie in memory or in files, and nobody can tell from the result."""

from __future__ import annotations

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.core.batch import Batch, concatenate
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.inference.gathered import Gathered, GatheredAtoms
from bnp_dask.store import MemoryStore, RunStore
from bnp_dask.store.checkpoint import NOTHING_LISTED, PartFiles
from tests.faults.kinds import KINDS, documents
from tests.faults.parts import After, bits


@pytest.fixture(scope="module", params=KINDS)
def run(request, tmp_path_factory):
    """A kind of run, where its data are, and its bits."""
    kind, folder = KINDS[request.param], tmp_path_factory.mktemp("data")
    return kind, folder, bits(kind.train(folder, client=SerialExecutor()))


@pytest.mark.first_case
def test_the_bits_do_not_depend_on_where_atoms_are(run, tmp_path, monkeypatch):
    kind, folder, expected = run
    written = []
    put = PartFiles.put
    monkeypatch.setattr(PartFiles, "put", lambda *args: written.append(put(*args)) or written[-1])
    assert bits(kind.train(folder, client=SerialExecutor(), memory=1)) == expected
    assert len(written) > 10
    executor = ThreadExecutor(2)
    assert bits(kind.train(folder, client=executor, memory="1kB", store=tmp_path / "run")) == expected
    executor.close()
    referred = {part.name for part in written} & {path.name for path in (tmp_path / "run" / "parts").iterdir()}
    assert len(list((tmp_path / "run" / "parts").iterdir())) == len(referred) <= len(written) / 2


@pytest.mark.first_case
@pytest.mark.parametrize("stop", [pytest.param(11, marks=pytest.mark.long), 17])
def test_a_run_whose_atoms_lie_in_files_is_resumed(run, tmp_path, stop):
    kind, folder, expected = run

    class Blow(Exception):
        pass

    def strike():
        raise Blow

    more = {"client": SerialExecutor(), "store": tmp_path / "run", "checkpoint_minutes": 1e-9}
    with pytest.raises(Blow):
        kind.train(folder, memory=1, callbacks=[After(stop, strike)], **more)
    assert list((tmp_path / "run" / "parts").iterdir())
    assert bits(kind.train(folder, memory="1GB", resume=True, **more)) == expected


def test_a_checkpoint_whose_parts_are_damaged_is_passed_over(tmp_path):
    store = RunStore.create(tmp_path / "run", {})
    files, parts = store.part_files(), []
    for number in range(3):
        parts.append(files.put(f"atoms-{number}.npz", {"x": np.arange(4.0) + number}))
        store.commit({"number": number}, {}, [], NOTHING_LISTED, [parts[-1]])
    assert {path.name for path in files.folder.iterdir()} == {"atoms-1.npz", "atoms-2.npz"}  # two checkpoints are kept
    files.put("atoms-3.npz", {"x": np.zeros(1)})  # its process was killed before the commit
    store.close()
    store = RunStore.open(tmp_path / "run")
    assert store.load().state == {"number": 2}
    assert {path.name for path in files.folder.iterdir()} == {"atoms-1.npz", "atoms-2.npz"}
    store.close()
    files.path("atoms-2.npz").write_bytes(files.path("atoms-1.npz").read_bytes())
    with pytest.raises(StoreError, match=r"atoms-2\.npz is damaged"):
        files.get(parts[2])
    with pytest.warns(UserWarning, match=r"atoms-2\.npz is damaged.*going on from checkpoint 2"):
        assert RunStore.view(tmp_path / "run").load().state == {"number": 1}
    files.path("atoms-1.npz").unlink()
    with pytest.raises(StoreError, match=r"no checkpoint .* is whole.*atoms-1\.npz is missing"):
        RunStore.view(tmp_path / "run").load()


DENSE = [Batch(np.arange(12.0).reshape(4, 3) + i, np.full(4, 0.5 + i) if i != 1 else None) for i in range(3)]
IN_GROUPS = [Batch(b.x, None, groups=np.array([0, 1, 4])) for b in DENSE]
SPARSE = [Batch(documents(6, 10, 2, seed)) for seed in range(3)]


@pytest.mark.parametrize("pieces", [DENSE, IN_GROUPS, SPARSE])
@pytest.mark.parametrize("written_after", [(), (0,), (1,), (0, 2), (2,)])
def test_pieces_come_back_in_order(pieces, written_after):
    store, gathered = MemoryStore(1), Gathered()
    for i, piece in enumerate(pieces):
        gathered.add(7, [piece])
        if i in written_after:
            gathered.write(store.part_files())
    found = GatheredAtoms(gathered, store.part_files, 10**6)
    assert 7 in found and 8 not in found and list(found) == [7] and len(found) == 1
    whole, expected = found[7], concatenate(pieces)
    for name in ("data", "indices", "indptr") if whole.is_sparse else ("real",):
        np.testing.assert_array_equal(getattr(whole.x, name), getattr(expected.x, name))
        assert getattr(whole.x, name).dtype == getattr(expected.x, name).dtype
    np.testing.assert_array_equal(whole.weights, expected.weights)
    np.testing.assert_array_equal(whole.groups, expected.groups)
    store.forget_parts(gathered.parts())
    assert not any((store.part_files().folder).glob("*"))
    store.close()


def test_atoms_get_the_columns_of_new_words_and_files_go_along_with_a_run():
    first, second, gathered = MemoryStore(1), MemoryStore(1), Gathered()
    gathered.add(7, SPARSE[:1])
    gathered.write(first.part_files())
    gathered.add(7, SPARSE[1:])
    gathered.add(9, SPARSE[:1])
    before = gathered.parts()
    gathered.move(first.part_files(), second.part_files())
    first.close()
    assert [part.name for part in gathered.parts()] == [part.name for part in before]
    gathered.widen(12)
    found = GatheredAtoms(gathered, second.part_files, 10**6, width=12)
    assert gathered.in_memory()[7].n_features == 12
    np.testing.assert_array_equal(found[9].x.toarray(), SPARSE[0].widened(12).x.toarray())
    wide = np.concatenate([piece.widened(12).x.toarray() for piece in SPARSE])
    np.testing.assert_array_equal(found[7].x.toarray(), wide)
    second.close()


def test_what_was_read_is_kept_as_far_as_there_is_room():
    store, gathered, reads = MemoryStore(1), Gathered(), []
    for cluster in range(3):
        gathered.add(cluster, [Batch(np.zeros((10, 10)) + cluster)])
    gathered.write(store.part_files())

    def files():
        reads.append(1)
        return store.part_files()

    found = GatheredAtoms(gathered, files, 2 * 800)
    for cluster in (0, 1, 0, 1, 0):
        assert found[cluster].x[0, 0] == cluster
    assert len(reads) == 2
    assert found[2].x[0, 0] == 2 and found[0].x[0, 0] == 0
    assert len(reads) == 3
    assert found[1].x[0, 0] == 1
    assert len(reads) == 4
    store.close()


@pytest.mark.parametrize("memory", [0, -1, "lots", "-4GB", None, True, float("nan"), float("inf"), [1]])
def test_memory_that_is_none(memory):
    with pytest.raises(SettingError, match=r"memory=.*needs a positive number of bytes, or text such as '256MB'"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), np.zeros((4, 2)), memory=memory)
