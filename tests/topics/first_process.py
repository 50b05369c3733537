"""``python -m tests.topics.first_process``: a run that compiles the kernels of topics; prints a hash of its bits."""

from __future__ import annotations

import hashlib
import warnings

import bnp_dask as bnp
from tests.train.test_starts import KINDS, bits, go


def main() -> None:
    model, data, settings = KINDS["topics"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        found = go(model, data(), rng=5, **settings)
    print(hashlib.sha256(b"".join(bits(found).values())).hexdigest())


if __name__ == "__main__":
    main()
