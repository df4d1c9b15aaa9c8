"""Speed of training, and memory."""
