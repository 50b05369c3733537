"""Options of kernels that other kernels call, and nothing else does.

A kernel gets an entrance for Python and one for C beside its code.  Each takes its arguments apart, and for records of
many arrays that is more to compile than the kernel itself.
"""

from __future__ import annotations

from typing import Any

INNER: dict[str, Any] = {"nogil": True, "cache": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Without entrances: a call from Python fails."""
