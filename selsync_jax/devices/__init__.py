"""Workers on devices: the layout, the mappers, and the workers' arrays."""
