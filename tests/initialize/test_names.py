"""Starts of topic and sequence models take their number of topics or states by that name, too."""

from __future__ import annotations

from dataclasses import replace

import pytest

import bnp_dask as bnp
from bnp_dask.cli.jobfile import read_job
from bnp_dask.errors import SettingError

NAMES = {bnp.SampledTopics: "n_topics", bnp.AnchorWords: "n_topics", bnp.ContiguousBlocks: "n_states"}


@pytest.mark.parametrize("start", NAMES)
def test_both_names_set_the_same_number(start):
    name = NAMES[start]
    given = start(**{name: 7})
    assert given == start(7) == start(n_clusters=7) and hash(given) == hash(start(7))
    assert given.n_clusters == getattr(given, name) == 7
    assert replace(given, n_clusters=9) == start(9)
    assert repr(given) == repr(start(7))
    with pytest.raises(SettingError, match=f"n_clusters=3 and {name}=7 are two names of one setting"):
        start(3, **{name: 7})
    with pytest.raises(SettingError, match=f"{name}=0: needs a whole number"):
        start(**{name: 0})


@pytest.mark.parametrize("start", [bnp.AnchorWords, bnp.ContiguousBlocks])
def test_a_number_is_needed_where_there_is_no_default(start):
    with pytest.raises(SettingError, match="n_clusters=None: needs a whole number"):
        start()


@pytest.mark.parametrize("name", ["n_clusters", "n_topics"])
def test_job_files_take_both_names(name, tmp_path):
    (tmp_path / "run.yaml").write_text(
        "model: {allocation: HDPTopics, observation: Multinomial}\n"
        "data: docs.zarr\n"
        f"init: {{type: AnchorWords, {name}: 12}}\n"
    )
    assert read_job(tmp_path / "run.yaml").init == bnp.AnchorWords(12)
