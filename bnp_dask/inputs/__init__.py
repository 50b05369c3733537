"""Checks of user input: settings, arrays, sparse matrices, paths, YAML, lines of text.

A value as given -> one function for its kind -> the value in the form that the rest of the package uses, or an error
that names the value found and the value needed.
"""
