"""Processes of one JAX world: connection, agreement, and failure."""
