"""The server as a process: what it takes for itself when it starts."""

from __future__ import annotations

import resource

from belljar.server import running


def test_more_files_may_be_open_than_a_shell_gives() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        running._raise_limit()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        expected = running.DESCRIPTORS if hard == resource.RLIM_INFINITY else min(running.DESCRIPTORS, hard)
        assert raised == (expected, hard)
        running._raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
