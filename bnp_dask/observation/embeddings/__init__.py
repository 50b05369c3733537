"""Likelihoods of embeddings: vectors whose direction says what they mean."""
