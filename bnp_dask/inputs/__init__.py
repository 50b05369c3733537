"""Checks of what users give: settings, arrays, sparse matrices, paths, YAML, lines of text.

A value as it came -> one function for its kind -> the value as the rest of the package has it, or an error that says
what was found and what is needed.
"""
