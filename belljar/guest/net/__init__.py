"""The guest's side of the network: programs connect as they always do, and the host is asked for each connection."""
