"""Logistic regression of scikit-learn, whose coefficients are averaged."""
