"""``python -m bnp_dask`` is ``bnp-dask``."""

from bnp_dask.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
