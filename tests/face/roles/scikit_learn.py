"""Pipelines, grid search, clones, pickles and tables, as scikit-learn's users have them."""

import pickle

import numpy as np
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bnp_dask as bnp

X, kinds = load_wine(return_X_y=True, as_frame=True)
steps = make_pipeline(StandardScaler(), bnp.DirichletProcessMixture("diag_gaussian", random_state=0))
labels = steps.fit_predict(X)
print("agreement with the kinds of wine:", round(adjusted_rand_score(kinds, labels), 2))
print("held out:", cross_val_score(steps, X, cv=3).round(2))
search = GridSearchCV(
    bnp.DirichletProcessMixture("gaussian", random_state=0),
    {"gamma": [1.0, 10.0], "observation__kappa": [0.01, 0.1]},
    cv=3,
)
iris, species = load_iris(return_X_y=True, as_frame=True)
print(search.fit(iris).best_params_)
again = pickle.loads(pickle.dumps(search.best_estimator_))
assert np.array_equal(again.predict(iris), search.predict(iris))
assert clone(again).get_params()["gamma"] == again.gamma
shares = clone(again).set_output(transform="pandas").fit(iris).transform(iris)
print(shares.head(2).round(2))
chosen = make_column_transformer((StandardScaler(), ["alcohol", "hue"]), remainder="drop")
print(np.unique(make_pipeline(chosen, bnp.DirichletProcessMixture(random_state=0)).fit_predict(X)))
as_features = make_pipeline(bnp.DirichletProcessMixture("gaussian", random_state=0), LogisticRegression())
print("species foretold:", as_features.fit(iris, species).score(iris, species) > 0.6)
