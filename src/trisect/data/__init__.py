"""Files, tables, named sets, generators and PyG objects → plain arrays (`records`). Knows no ranks and no models."""
