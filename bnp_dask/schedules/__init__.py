"""Schedules: generators of states, each written like its algorithm in the thesis."""
