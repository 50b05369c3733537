"""Plain functions on arrays; imports numpy, scipy and numba only.  Each has a slow twin in tests/naive.py."""
