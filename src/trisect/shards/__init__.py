"""What each rank reads: written and read, in memory or on disk; the snapshot stream. Does not know models."""
