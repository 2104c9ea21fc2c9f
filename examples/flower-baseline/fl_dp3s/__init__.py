"""FL-DP3S and match as a Flower baseline."""
