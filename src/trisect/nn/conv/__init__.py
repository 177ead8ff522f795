"""Graph convolutions, as spatial layers."""
