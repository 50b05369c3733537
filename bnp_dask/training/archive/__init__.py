"""Archives: registered dataclasses as Zarr arrays and JSON, written in one piece.

A saved posterior is a directory (or a prefix of an object store)::

    model.zarr/
      zarr.json               format version, description of the model, CRC-32 of every array
      state-1f0c....zip       Zarr v3 arrays, one per parameter and statistic, in one file

``zarr.json`` is written last and in one piece, and it names the file that it describes: a kill while saving leaves the
old model or the new one.  Nothing in a saved model is code, and nothing in it is run.
"""

from bnp_dask.training.archive.whole import copy_archive, read_archive, write_archive

__all__ = ["copy_archive", "read_archive", "write_archive"]
