"""A table of numbers, names, dates and gaps: clusters of its rows, back in the table, and for rows that come later."""

import numpy as np
import pandas as pd

import bnp_dask as bnp

rng = np.random.default_rng(0)
kind = rng.integers(3, size=900)
table = pd.DataFrame(
    {
        "customer": [f"c{i:04d}" for i in range(900)],
        "income": np.exp(10.0 + 0.7 * kind + rng.normal(0.0, 0.15, 900)),
        "age": rng.normal(np.array([25.0, 45.0, 65.0])[kind], 3.0),
        "plan": np.array(["free", "plus", "pro"])[np.where(rng.random(900) < 0.9, kind, rng.integers(3, size=900))],
        "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(2000, size=900), unit="D"),
    }
)
table.loc[rng.random(900) < 0.1, "age"] = np.nan
table.loc[rng.random(900) < 0.1, "plan"] = None

features = table.drop(columns=["customer", "since"])
print(bnp.Product.choices(features))
likelihood = bnp.Product.of(features)
result = bnp.train(bnp.Model(bnp.DPMixture(), likelihood), features, store="runs/customers", rng=0)
table["cluster"] = bnp.predict(result.posterior, features)
print(table.groupby("cluster")[["income", "age"]].mean().round(0))
print(bnp.impute(result.posterior, features.head(3)))

later = table.head(20)
assert (bnp.predict(result.posterior, later[list(features)]) == later["cluster"]).all()
features.to_parquet("customers.parquet")
bnp.predict(bnp.load("runs/customers"), "customers.parquet", out="labels.parquet")
assert len(pd.read_parquet("labels.parquet")) == 900
bnp.report(result, "report.html", data=features)
print("clusters:", result.posterior.n_clusters)
