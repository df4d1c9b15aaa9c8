"""Workers on devices: the layout, the mappers, and the arrays of all."""
