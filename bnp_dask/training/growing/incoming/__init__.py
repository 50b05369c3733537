"""Data that come in: pieces of what is given -> their times -> one look at each batch; nothing is taken yet."""
