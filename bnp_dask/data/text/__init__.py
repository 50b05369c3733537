"""Texts: files or tables -> tokens -> a vocabulary -> counts in Zarr, with what documents are called."""
