"""The version: this is the one place that states it."""

__version__ = "0.3.0"
