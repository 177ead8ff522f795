"""Graph convolutions: spatial layers in two halves."""
