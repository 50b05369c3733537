"""Documents: the local step, sums of words, Gibbs sampling, anchor words, completion."""
