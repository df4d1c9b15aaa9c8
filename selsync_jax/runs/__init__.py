"""The files of a run: records, checkpoints, weights, and copies for loggers."""
