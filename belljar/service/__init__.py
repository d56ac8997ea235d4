"""What a server offers of a fleet: workspaces, tokens, lifecycle and events. Knows nothing of HTTP or of any wire dialect."""
