"""Sums over neighbours: sparse times dense, forward and backward."""
