"""Part of a page that shows clusters: the features that distinguish them, and the clusters in these features."""
