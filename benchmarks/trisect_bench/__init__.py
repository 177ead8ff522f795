"""Side-by-side measurements, peers included where installed."""
