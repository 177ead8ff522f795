"""Outputs of a trained model: computed in this process or on ranks, and written as a table."""
