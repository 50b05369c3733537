"""Other states of one run: several starts, of which one goes on, and shadows beside it."""
