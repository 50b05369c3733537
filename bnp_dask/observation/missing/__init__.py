"""Missing entries: NaN in a batch -> which entries -> statistics, likelihoods and expected values."""
