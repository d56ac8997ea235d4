"""What runs the cells of a context inside a guest, under the guest's own interpreters. The agent is never imported here."""
