"""Belljar's own routes under /v1, beside the PandaStack ones."""
