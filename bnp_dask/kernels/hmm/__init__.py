"""Sequences: forward and backward sweeps, restricted sweeps, entropies of merged states, the top level."""
