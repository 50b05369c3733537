"""Quadratic forms of Gaussians: log densities of blocks, factors, bounds that screen clusters out."""
