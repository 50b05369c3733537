"""Sources of batches: files, arrays and collections, and what is known about them."""
