"""Abilities of likelihoods beside inference: a posterior -> random atoms; two likelihoods -> whether they are equal."""
