"""Texts: files or tables -> tokens -> a vocabulary -> counts in Zarr, with names of documents."""
