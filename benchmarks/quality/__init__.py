"""How good the results are: accuracy, and how well a prediction holds."""
