"""Tables with columns of several kinds: columns of levels, and a likelihood proposed for each column."""
