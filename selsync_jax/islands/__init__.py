"""Workers that are programs of their own, and what carries their messages."""
