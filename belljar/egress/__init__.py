"""What leaves a sandbox: every connection is judged by name, checked by address, opened by the host, and written down."""
