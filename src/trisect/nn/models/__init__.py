"""Models by name, made of layers."""
