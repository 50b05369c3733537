"""Pure streams: batches of which no statistics are kept -> one sum of all -> the total of the run."""
