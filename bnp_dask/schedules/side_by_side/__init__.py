"""Several states of one run that visit the same batches at the same time."""
