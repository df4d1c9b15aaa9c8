"""Traffic over an emulated network, and the time that it takes."""
