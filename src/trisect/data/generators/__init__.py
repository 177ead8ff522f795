"""Graphs and timelines that are made up."""
