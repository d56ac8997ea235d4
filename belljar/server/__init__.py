"""The HTTP server: parses, calls the service, renders. A folder per wire dialect, a file per noun."""
