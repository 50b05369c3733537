"""Answers of a posterior that differ by how atoms hang together: beliefs and new data -> labels, shares of topics,
densities; beliefs -> random data, chances of states."""
