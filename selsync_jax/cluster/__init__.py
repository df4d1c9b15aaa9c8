"""The processes of one JAX world: how they find each other, live and die."""
