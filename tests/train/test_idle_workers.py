"""A run whose batches, or batches in flight, are fewer than its workers says so."""

import logging

from bnp_dask.training.callbacks import tell_of_idle


def test_fewer_batches_or_batches_in_flight_than_workers_are_told_of(caplog):
    with caplog.at_level(logging.WARNING, logger="bnp_dask"):
        tell_of_idle("docs.zarr", 1, 8, 2)
        tell_of_idle("docs.zarr", 2, 8, 2)
        tell_of_idle("docs.zarr", 100, 12, 12)
        tell_of_idle("docs.zarr", 100, 12, 13)
    assert [record.getMessage() for record in caplog.records] == [
        "docs.zarr: 1 batch for 2 workers, some of which have nothing to do; make smaller ones (batch_size=)",
        "docs.zarr: at most 12 of 100 batches in flight, the schedule's window, for 13 workers, some of which have "
        "nothing to do",
    ]
