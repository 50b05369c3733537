"""Growing runs: pieces of data, looked at once -> new batches behind the run's batches -> visits -> a version."""
