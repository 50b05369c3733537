"""Growing runs: pieces of data, looked at once -> new batches behind those of the run -> visits -> a version."""
