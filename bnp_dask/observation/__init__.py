"""Observation models: one file is one likelihood with its conjugate prior."""
