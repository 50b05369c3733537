"""Pages and pictures of a run, made for people."""
