"""Kernels are compiled before they are waited for, and by one process where several need the same."""
