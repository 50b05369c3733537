"""Texts in a list: topics, what new texts are about, a page to browse."""

import inspect
import re

import sklearn.cluster
import sklearn.linear_model
import sklearn.metrics

import bnp_dask as bnp

modules = (sklearn.cluster, sklearn.linear_model, sklearn.metrics)
texts = [
    part
    for module in modules
    for name in module.__all__
    for part in re.split(r"\n\s*\n", inspect.getdoc(getattr(module, name)) or "")
    if len(part.split()) > 20
]
topics = bnp.TopicModel(text=bnp.Text(stop_words="english", min_df=5, max_df=0.3), random_state=0).fit(texts)
print(topics.posterior_.topics(6))
print(topics.transform(["distance between the clusters"]).shape)
print(bnp.explain(topics.posterior_, "the distance between two clusters of samples"))
bnp.report(topics.posterior_, "topics.html", data=texts)

print(bnp.ingest(texts, "texts.zarr", text=bnp.Text(stop_words="english", min_df=5, max_df=0.3)))
result = bnp.train(bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), "texts.zarr", store="runs/texts", rng=0)
print(f"{bnp.score(result.posterior, 'texts.zarr'):.2f} nats per held-out token")
print("several topics:", result.posterior.n_clusters > 5)
