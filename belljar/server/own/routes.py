"""All of Belljar's own routes."""

from __future__ import annotations

from starlette.routing import BaseRoute

from belljar.server.own import commands, contexts, egress, fs, processes, quota, stats, terminals

NOUNS = (processes, terminals, commands, contexts, fs, stats, egress, quota)
ROUTES: list[BaseRoute] = [route for noun in NOUNS for route in noun.ROUTES]
