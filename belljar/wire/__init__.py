"""The protocol between host and guest: bytes in, events out. Standard library only, no sockets, no loop."""
