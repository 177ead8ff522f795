"""Cells on their way through stages: which runs when, and what crosses between them.

A cell is a stage of layers on a chunk of vertices, or on a block of steps. Does not know what a layer is, nor how a
view reads rows of others.
"""
