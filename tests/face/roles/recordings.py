"""A table with a column for the recording and one for the time; states, and how long they last."""

import numpy as np
import pandas as pd

import bnp_dask as bnp

rng = np.random.default_rng(0)
places = np.array([[0.0, 0.0], [9.0, 9.0], [0.0, 9.0]])
walks = [np.repeat(places[order], 60, axis=0) + rng.normal(size=(180, 2)) for order in ([0, 1, 2], [2, 0, 1])]
table = pd.concat(
    [pd.DataFrame(w, columns=["x", "y"]).assign(walk=i, step=range(len(w))) for i, w in enumerate(walks)],
    ignore_index=True,
)
source = bnp.as_source(table, groups="walk", order="step")
result = bnp.train(bnp.Model(bnp.HDPHMM(kappa=50.0), bnp.Gaussian()), source, rng=0)
states = bnp.predict(result.posterior, source)
print(bnp.state_durations(states, walks))
print(bnp.transitions(result.posterior))
print("states:", result.posterior.n_clusters)
