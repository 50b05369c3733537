"""Likelihoods of embeddings: vectors whose direction carries their meaning."""
