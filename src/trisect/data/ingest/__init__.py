"""Tables of events and of vertices, read and encoded."""
