"""The client of a Belljar server. `from belljar import Sandbox` is the way in; `_sync` is generated from `_async`."""
