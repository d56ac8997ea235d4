"""The SandBase wire format, at the root."""
