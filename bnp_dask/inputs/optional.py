"""Packages that only some calls need."""

from __future__ import annotations

from typing import Any

from bnp_dask.errors import SettingError


def pandas_for(call: str) -> Any:
    """The package pandas; SettingError that names ``call`` and says how to install it."""
    try:
        import pandas
    except ImportError as error:
        raise SettingError(f"{call} needs pandas: pip install 'bnp-dask[dataframe]'") from error
    return pandas
