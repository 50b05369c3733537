"""Which failures are worth another try."""

import errno
import http.client

import pytest

from bnp_dask.data.view import read_or_why
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.execute.base import DEFAULT_RETRIES, may_pass


def raised(error, cause=None):
    try:
        raise error from cause
    except Exception as caught:
        return caught


class FromStorage(Exception):
    """As storage libraries have them: of no type that Python knows."""

    __module__ = "botocore.exceptions"


class AlsoFromStorage(FromStorage):
    """One that a file system derives from another's."""


PASSES = {
    "without a number": OSError("the line is down"),
    "input and output": OSError(errno.EIO, "Input/output error"),
    "stale handle": OSError(errno.ESTALE, "Stale file handle"),
    "timeout": TimeoutError(),
    "lost connection": ConnectionResetError(errno.ECONNRESET, "reset"),
    "half an answer": http.client.IncompleteRead(b""),
    "storage": FromStorage(),
    "derived from storage": AlsoFromStorage(),
    "memory": MemoryError(),
    "data that could not be fetched": raised(DataError("x"), TimeoutError()),
    "through two layers": raised(DataError("batch 3: x"), raised(DataError("x"), ConnectionError())),
}

STAYS = {
    "value": ValueError("of a likelihood"),
    "type": TypeError(),
    "division": ZeroDivisionError(),
    "data": DataError("negative counts"),
    "setting": SettingError("gamma"),
    "damaged": raised(DataError("x"), RuntimeError("blosc")),
    "store": raised(StoreError("x"), OSError(errno.ENOSPC, "No space left on device")),
    "missing": FileNotFoundError("s3://bucket/key"),
    "full": OSError(errno.ENOSPC, "No space left on device"),
    "no permission": PermissionError("Forbidden"),
    "long name": OSError(errno.ENAMETOOLONG, "File name too long"),
    "of no cause": raised(DataError("x")),
}


@pytest.mark.parametrize("name", PASSES)
def test_what_may_pass(name):
    assert may_pass(PASSES[name])


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    assert not may_pass(STAYS[name])


@pytest.mark.parametrize(
    ("name", "times"), [*((n, DEFAULT_RETRIES + 1) for n in PASSES if n != "memory"), *((n, 1) for n in STAYS)]
)
def test_a_batch_that_may_be_left_out_is_read_again_only_where_that_may_help(name, times):
    error, calls = (PASSES | STAYS)[name], []

    def read():
        calls.append(name)
        raise error

    assert type(error).__name__ in read_or_why(read)
    assert len(calls) == times
