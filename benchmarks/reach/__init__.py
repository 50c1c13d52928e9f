"""The package where people are: Optuna, Ax, scikit-learn, many processes."""
