"""Bayesian nonparametric clustering of data that no single machine holds."""
