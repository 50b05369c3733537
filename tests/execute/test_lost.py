"""Clients whose scheduler is gone: closing them hides no error."""

from __future__ import annotations

import logging

import pytest

from bnp_dask.errors import ExecutionError
from bnp_dask.execute.dask import LEFT, closed_in_time, told


class Leaving:
    """A client that connects again while it is closed."""

    status = "running"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def close(self, timeout: float) -> None:
        """Fails, as Dask's client does when its pool of connections is closed under a task of its own."""
        self.status = "closed"
        raise self.error


@pytest.mark.parametrize("error", [kind("ConnectionPool is closed") for kind in LEFT])
def test_closing_hides_no_error(error):
    with pytest.raises(ExecutionError, match="lost the cluster"), closed_in_time(Leaving(error)):
        raise ExecutionError("lost the cluster")
    with closed_in_time(Leaving(error)):
        pass


def test_errors_of_closing_are_not_logged_and_others_are(caplog, monkeypatch):
    client = Leaving(RuntimeError("ConnectionPool is closed"))
    logger = logging.getLogger("distributed.client")
    monkeypatch.setattr(logger, "filters", [])  # closed clients of earlier tests may not have been collected yet
    told(client)
    logger.error("while it runs", exc_info=client.error)
    client.status = "closing"
    logger.error("left out", exc_info=client.error)
    logger.error("something else", exc_info=ValueError("bad"))
    assert [record.getMessage() for record in caplog.records] == ["while it runs", "something else"]
    del client
    logger.error("after it", exc_info=RuntimeError("of another"))
    assert caplog.records[-1].getMessage() == "after it"
