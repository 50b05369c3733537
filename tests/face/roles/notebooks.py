"""Cells of a notebook, run by IPython: a Dask client without a main guard, results that show themselves, plots."""

from IPython.core.interactiveshell import InteractiveShell

CELLS = """
import numpy as np, bnp_dask as bnp
from dask.distributed import Client, LocalCluster
rng = np.random.default_rng(0)
x = np.concatenate([rng.normal(c, 1.0, (500, 2)) for c in ([0, 0], [8, 0], [0, 8])])

client = Client(LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0"))

result = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, client=client, batch_size=250, rng=0)
result

result.posterior

bnp.plot.mixture(result, x)

bnp.plot.history(result)

bnp.inspect(result.posterior)

bnp.certainty(result.posterior)

client.close(); client.cluster.close()
"""

if __name__ == "__main__":
    shell = InteractiveShell.instance()
    shell.enable_gui = lambda gui=None: None  # pictures inline need no event loop
    shell.enable_matplotlib("inline")
    for cell in CELLS.split("\n\n"):
        shell.run_cell(cell, store_history=False).raise_error()
    print("clusters:", shell.user_ns["result"].posterior.n_clusters)
