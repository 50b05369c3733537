"""Tells transient failures, after which a retry makes sense, from permanent ones."""

from __future__ import annotations

import errno
import http.client

from bnp_dask.errors import BnpDaskError

FACTS = frozenset(
    getattr(errno, name)
    for name in (
        "EACCES", "EBADF", "EDQUOT", "EEXIST", "EFBIG", "EINVAL", "EISDIR", "ELOOP", "EMLINK", "ENAMETOOLONG", "ENODEV",
        "ENOENT", "ENOEXEC", "ENOSPC", "ENOSYS", "ENOTDIR", "ENOTEMPTY", "ENOTSUP", "ENXIO", "EPERM", "EROFS", "ESPIPE",
        "EXDEV",
    )
    if hasattr(errno, name)
)  # fmt: skip
"""Permanent errors of an operating system, such as a missing file or a full disk."""

FACT_ERRORS = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Types of permanent errors: storage libraries raise them without an error number."""

STORAGE_LIBRARIES = frozenset(
    ("adlfs", "aiobotocore", "aiohttp", "azure", "boto3", "botocore", "ftplib", "gcsfs", "google", "httpx", "paramiko",
     "requests", "s3fs", "urllib3")
)  # fmt: skip
"""Packages that access remote storage; they have their own types of errors, which mean that it did not answer."""

IMPORTING = "_frozen_importlib"
"""Module of the import error when two threads import a package in opposite orders: in a worker that has just started,
the threads of a task and of receiving values from other workers.  The other import goes on."""


def may_pass(error: BaseException) -> bool:
    """Whether the task that raised an error may succeed when it is run again.

    It may after operating system errors (including timeouts and lost connections) that are not permanent, errors of
    libraries for remote storage, imports of two threads that waited for each other, and a lack of memory, which another
    worker or moment may have.  An error of this package is transient if its cause is.  All others, of likelihoods or of
    the data, recur at every try.
    """
    if isinstance(error, BnpDaskError):
        return error.__cause__ is not None and may_pass(error.__cause__)
    if isinstance(error, OSError):
        return error.errno not in FACTS and not isinstance(error, FACT_ERRORS)
    packages = {kind.__module__.split(".")[0] for kind in type(error).__mro__}
    return isinstance(error, (MemoryError, http.client.HTTPException)) or bool(
        packages & STORAGE_LIBRARIES or IMPORTING in packages
    )
