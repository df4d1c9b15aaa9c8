"""The setup of a run from its config, the training step, and the loop."""
