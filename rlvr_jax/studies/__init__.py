"""The papers' claims, repeated at a size that a laptop computes: see `study`."""
