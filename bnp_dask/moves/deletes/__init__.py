"""Deletes: a cluster whose atoms others take over, tried on the whole data."""
