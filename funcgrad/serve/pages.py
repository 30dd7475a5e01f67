"""The server's page: what is served, and a form to try it. It asks no host but this one."""

from __future__ import annotations

from importlib import resources

_KINDS = {
    "": ("index.html", b"text/html; charset=utf-8"),
    "page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "page.css": ("page.css", b"text/css; charset=utf-8"),
}
# No scripts or styles but the page's files, and no frames around it.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


def page(path: str) -> tuple[bytes, list[tuple[bytes, bytes]]] | None:
    """The file of the page at a path, and its headers; None where there is none.

    >>> from funcgrad.serve.pages import page
    >>> page("/")[0][:15], page("/x")
    (b'<!doctype html>', None)
    """
    found = _KINDS.get(path.removeprefix("/"))
    if found is None:
        return None
    name, kind = found
    text = resources.files("funcgrad.serve").joinpath("page", name).read_bytes()
    headers = [
        (b"content-type", kind), (b"content-security-policy", _POLICY),
        (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"),
    ]  # fmt: skip
    return text, headers
