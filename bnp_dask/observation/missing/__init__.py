"""Entries that are missing: NaN in a batch -> which entries -> statistics, likelihoods and expected values."""
