"""Responsibilities of independent atoms: softmax rows, dense or sparse, and entropies."""
