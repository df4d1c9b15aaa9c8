"""What travels over an emulated network, and how long that takes."""
