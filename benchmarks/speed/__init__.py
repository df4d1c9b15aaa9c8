"""How long training takes, and how much memory."""
