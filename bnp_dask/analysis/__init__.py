"""Results on data: labels, scores, point estimates, topics of documents, states of sequences."""
