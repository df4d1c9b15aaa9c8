"""Quality of the results: accuracy, and how well predictions hold."""
