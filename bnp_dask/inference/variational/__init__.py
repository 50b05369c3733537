"""Variational inference on whole data and on data that arrive: full batch, memoized, stochastic, and runs that grow."""
