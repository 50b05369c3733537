"""Which failures may pass by themselves, so that trying again makes sense."""

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
"""Refusals of an operating system that stay until somebody does something: a missing file, a full disk."""

FACT_ERRORS = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Types of refusals that stay: storage libraries raise them without a number."""

STORAGE_LIBRARIES = frozenset(
    ("adlfs", "aiobotocore", "aiohttp", "azure", "boto3", "botocore", "ftplib", "gcsfs", "google", "httpx", "paramiko",
     "requests", "s3fs", "urllib3")
)  # fmt: skip
"""Packages that speak to remote storage; their errors are of types of their own and mean that it did not answer."""

IMPORTING = "_frozen_importlib"
"""Module of the error that an import ends with where two threads import a package from two ends: in a worker that has
just started, a thread of tasks and the one that receives values of others.  The other import goes on."""


def may_pass(error: BaseException) -> bool:
    """Whether the task that raised an error may succeed when it is run again.

    So do operating system errors (timeouts and lost connections are among them) other than refusals that stay, errors
    of libraries for remote storage, imports of two threads that waited for each other, and a lack of memory, of which
    another worker or moment may have more.  An error of this package may pass if the one that it was raised from may.
    All others, of likelihoods or of the data, are the same at every try.
    """
    if isinstance(error, BnpDaskError):
        return error.__cause__ is not None and may_pass(error.__cause__)
    if isinstance(error, OSError):
        return error.errno not in FACTS and not isinstance(error, FACT_ERRORS)
    packages = {kind.__module__.split(".")[0] for kind in type(error).__mro__}
    return isinstance(error, (MemoryError, http.client.HTTPException)) or bool(
        packages & STORAGE_LIBRARIES or IMPORTING in packages
    )
