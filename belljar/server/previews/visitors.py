"""Whose page makes a request. A browser sends a cookie along for every page that asks, also for one that somebody else wrote.

Previews below one domain are one site to browsers, so `SameSite` does not keep the page of one sandbox from another's preview: it
could open a WebSocket there and read. Browsers say which page asks, and pages of the same sandbox may.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from belljar.errors import Forbidden
from belljar.server.previews.addresses import find_preview

FOREIGN = "a page of another site asks for this, and the cookie of a preview is not for other pages; open the preview itself"


def check_page(connection: HTTPConnection, sandbox_id: str) -> None:
    """Forbidden if the page that asks is somebody else's. Links and frames that lead to a preview are none of that."""
    headers = connection.headers
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site in ("same-origin", "none") or (site is None and origin is None):
        return  # its own page, the address bar, or no browser
    leads_here = connection.scope.get("method") in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
    if not leads_here and not _is_of(origin or headers.get("referer", ""), headers.get("host", ""), sandbox_id):
        raise Forbidden(FOREIGN)


def _is_of(page: str, host: str, sandbox_id: str) -> bool:
    """Whether a page is one of the same sandbox, by whichever of its ports, below the same domain."""
    try:
        where = urlsplit(page).netloc.lower()
    except ValueError:
        return False
    preview = find_preview(where)
    same_domain = where.partition(".")[2] == host.lower().partition(".")[2]
    return preview is not None and preview.sandbox_id == sandbox_id and same_domain
