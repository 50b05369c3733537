"""Allocation models: one file is one way to assign atoms to clusters."""
