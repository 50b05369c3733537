"""Rows that belong together: groups and sequences, which are never split between batches."""
