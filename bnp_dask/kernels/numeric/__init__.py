"""Numbers: exp and log, vector code, compensated and sparse sums, quantiles."""
