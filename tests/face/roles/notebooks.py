"""Cells of a notebook, run by IPython: a Dask client without a main guard, results that show themselves, plots."""

from IPython.core.interactiveshell import InteractiveShell

CELLS = [
    "\nimport numpy as np, bnp_dask as bnp\nfrom dask.distributed import Client, LocalCluster\nrng = np.random.default_rng(0)\nx = np.concatenate([rng.normal(c, 1.0, (500, 2)) for c in ([0, 0], [8, 0], [0, 8])])\n",
    '\nclient = Client(LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0"))\n',
    "\nresult = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, client=client, batch_size=250, rng=0)\nresult\n",
    "\nresult.posterior\n",
    "\nbnp.plot.mixture(result, x)\n",
    "\nbnp.plot.history(result)\n",
    "\nbnp.inspect(result.posterior)\n",
    "\nbnp.certainty(result.posterior)\n",
    "\nclient.close(); client.cluster.close()\n",
]

if __name__ == "__main__":
    shell = InteractiveShell.instance()
    shell.enable_gui = lambda gui=None: None  # pictures inline need no event loop
    shell.enable_matplotlib("inline")
    for cell in CELLS:
        shell.run_cell(cell, store_history=False).raise_error()
    print("clusters:", shell.user_ns["result"].posterior.n_clusters)
