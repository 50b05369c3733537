"""Kernels are compiled before a run waits for them."""
