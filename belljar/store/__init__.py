"""Everything Belljar keeps on disk."""
