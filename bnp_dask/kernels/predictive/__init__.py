"""Loops over atoms in order: predictive rules of urns, and filters of counts and Gaussians."""
