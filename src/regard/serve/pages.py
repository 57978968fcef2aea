"""The files of the page, and the documentation of the interface as HTML; all of it comes from this server."""

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

from regard.show.html import MODULES


class Asset(NamedTuple):
    """A file of the page: its package, its name and its content type."""

    package: str
    name: str
    kind: str


HERE = "regard.serve.page"
SCRIPT, STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
ASSETS = {  # by path: no other file can be asked for
    "/": Asset(HERE, "index.html", "text/html; charset=utf-8"),
    "/page.css": Asset(HERE, "page.css", STYLE),
    "/page.js": Asset(HERE, "page.js", SCRIPT),
    "/viewer/viewer.css": Asset("regard.show", "viewer/viewer.css", STYLE),
    **{f"/viewer/{name}": Asset("regard.show", f"viewer/{name}", SCRIPT) for name in MODULES},
}


@cache
def read(asset: Asset) -> bytes:
    """The content of a file of the page."""
    return files(asset.package).joinpath(asset.name).read_bytes()


def docs(document: dict[str, Any]) -> bytes:
    """The OpenAPI document as a page without any script."""
    parts = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(path, method, operation))
    bounds = _table(("bound", "value"), [(name, f"{value:,}") for name, value in document["x-bounds"].items()])
    body = "\n".join(
        [
            f"<h1>{escape(document['info']['title'])} {escape(document['info']['version'])}</h1>",
            f"<p>{escape(document['info']['description'])} <a href='/openapi.json'>openapi.json</a>, "
            "<a href='/'>the page</a></p>",
            *parts,
            f"<section><h2>Bounds of this server</h2>{bounds}</section>",
        ]
    )
    head = "<meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
    style = "<link rel='stylesheet' href='/viewer/viewer.css'><link rel='stylesheet' href='/page.css'>"
    page = f"<!doctype html><html lang='en'><head>{head}<title>regard: interface</title>{style}</head>"
    return f"{page}<body class='docs'><main>{body}</main></body></html>".encode()


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    """One endpoint."""
    parts = [f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation.get('summary', ''))}</p>"]
    if "requestBody" in operation:
        body = operation["requestBody"]
        fields = body["content"]["application/json"]["schema"]["properties"]
        rows = [(name, _kind(field), field.get("description", "")) for name, field in fields.items()]
        parts.append(f"<p>{escape(body['description'])}</p>{_table(('key', 'type', 'meaning'), rows)}")
    statuses = [(status, response["description"]) for status, response in sorted(operation["responses"].items())]
    parts.append(_table(("status", "meaning"), statuses))
    return f"<section>{''.join(parts)}</section>"


def _kind(field: dict[str, Any]) -> str:
    default = f", default {str(field['default']).lower()}" if "default" in field else ""
    return f"{field.get('type', 'text or object')}{default}"


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
