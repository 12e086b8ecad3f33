"""The live page at `/` with its playground, and `/metrics`, `/stats` and `/slots`."""

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page/chat.js": ("chat.js", "text/javascript; charset=utf-8"),
    "/page/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
    "/page/lists.js": ("lists.js", "text/javascript; charset=utf-8"),
    "/page/replicas.js": ("replicas.js", "text/javascript; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Path to file and media type."""
