"""Answers of a posterior that depend on the structure: posterior and new data -> labels, shares of topics, densities;
posterior -> random data, probabilities of states."""
