"""Answers of a posterior that differ by how atoms hang together: beliefs -> random data, chances of states."""
