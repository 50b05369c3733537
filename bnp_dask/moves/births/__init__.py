"""Births: a plan from members of a cluster -> a small run -> a forecast -> a trial on the whole data."""
