"""The agent: what runs inside a sandbox. Standard library and `belljar.wire` only, as the image may carry nothing else."""
