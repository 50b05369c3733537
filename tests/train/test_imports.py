"""Packages that ``import bnp_dask`` and a run on arrays in one process load, and those that they leave alone."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

NOT_NEEDED = {
    "PIL", "bokeh", "dask", "distributed", "fsspec", "jinja2", "matplotlib", "msgpack", "numcodecs", "pandas",
    "pyarrow.compute", "scipy.stats", "sklearn", "tornado", "xarray", "zarr",
}  # fmt: skip
"""Of clusters, stores, tables and pictures."""

RUNS = """
import json, sys, warnings
import numpy as np
from scipy import sparse
before = set(sys.modules)
import bnp_dask as bnp
at_first = set(sys.modules) - before
warnings.simplefilter("ignore", bnp.ConvergenceWarning)
rows = np.random.default_rng(0).normal(size=(60, 2))
bnp.train
on_train = set(sys.modules)
after = {}
for kind, model, data in [
    ("points", bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), rows),
    ("topics", bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), sparse.csr_array(np.ones((8, 5)))),
    ("sequences", bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian()), [rows, rows[::-1]]),
]:
    bnp.train(model, data, schedule=bnp.Memoized(laps=1), moves=())
    after[kind] = sorted(sys.modules)
print(json.dumps([sorted(at_first), sorted(on_train), after]))
"""


def test_runs_on_arrays_load_no_package_of_clusters_stores_tables_or_pictures():
    done = subprocess.run([sys.executable, "-c", RUNS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    at_first, on_train, after = json.loads(done.stdout)
    at_first = set(at_first)
    assert {name for name in at_first if name.startswith("bnp_dask")} == {"bnp_dask", "bnp_dask._names"}
    assert not at_first & {"numba", "numpy", "pyarrow", "scipy"}
    assert "scipy.optimize" not in on_train
    assert {kind for kind, loaded in after.items() if NOT_NEEDED.intersection(loaded)} == set()
