"""Ports of sandboxes over HTTP and WebSocket: by host name, by path, and by signed link."""
