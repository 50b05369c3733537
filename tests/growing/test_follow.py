"""A folder that is watched: what appears there is taken in, once."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.training.growing.update import follow
from tests.growing.parts import begin, day, files


def test_a_folder_is_followed_until_it_is_told_to_stop(tmp_path):
    paths = files(tmp_path / "in", 2)
    begin(tmp_path / "run", paths[0])
    stop = threading.Event()
    looks = follow(
        tmp_path / "run", tmp_path / "in", every=0.01, stop=stop, batch_size=60, client=SerialExecutor(), revisit=0
    )
    assert next(looks).new == (str(paths[1]),)
    np.save(tmp_path / "in" / "later.npy", day(5))
    (tmp_path / "in" / "unfinished.npy.part").write_bytes(b"half")
    assert next(looks).new == (str(tmp_path / "in" / "later.npy"),)
    stop.set()
    assert list(looks) == []


def test_a_cut_file_ends_it_and_it_can_be_followed_again(tmp_path):
    paths = files(tmp_path / "in", 2)
    begin(tmp_path / "run", paths[0])
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[:-100])
    more = {"every": 0.01, "batch_size": 60, "client": SerialExecutor(), "revisit": 0}
    with pytest.raises(DataError, match=r"day1\.npy"):
        next(follow(tmp_path / "run", tmp_path / "in", **more))
    paths[1].write_bytes(whole)
    assert next(follow(tmp_path / "run", tmp_path / "in", **more)).version == 1


def test_only_places_can_be_followed(tmp_path):
    with pytest.raises(SettingError, match="where new files appear"):
        follow(tmp_path, day(0))
    with pytest.raises(SettingError, match="every"):
        follow(tmp_path, tmp_path, every=0)
