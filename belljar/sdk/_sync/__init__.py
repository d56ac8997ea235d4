"""The SDK without async: generated from `_async` by scripts/generate-sync, all but adaptors.py. Do not edit."""
