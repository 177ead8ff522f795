"""Actions of an epoch as a value: builders, validation, simulation, drawing. Knows no tensors."""
