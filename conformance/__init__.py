"""Cases with exact answers for libraries of mixtures, topics and hidden Markov models, and a runner for any of them."""

import os

for _name in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
    # fault scripts fork, which threads of numerical libraries do not survive
    os.environ.setdefault(f"{_name}_NUM_THREADS", "1")

from conformance.adapter import Adapter, NotOffered  # noqa: E402
from conformance.cases import Case, load_cases  # noqa: E402
from conformance.runner import Outcome, run  # noqa: E402

__version__ = "0.1.0"
__all__ = ["Adapter", "Case", "NotOffered", "Outcome", "load_cases", "run"]
