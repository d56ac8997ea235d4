"""Belljar: a code interpreter that you own. Every sandbox is a microVM."""
