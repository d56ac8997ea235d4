"""The PandaStack wire format, as its published clients speak it, under /v1."""
