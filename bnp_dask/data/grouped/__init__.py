"""Rows that belong together: groups and sequences, which no batch cuts."""
