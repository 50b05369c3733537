"""Data that come in: the given data as pieces -> their times -> one look at each batch; none is taken in yet."""
