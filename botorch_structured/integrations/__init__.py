"""The package inside other libraries: Optuna, Ax, scikit-learn."""
