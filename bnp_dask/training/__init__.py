"""Training: a model, data and settings -> survey -> starting values -> laps -> result."""
