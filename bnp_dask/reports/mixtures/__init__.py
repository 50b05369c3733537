"""The part of a page that shows clusters: which features tell them apart, and what each cluster is like in these."""
