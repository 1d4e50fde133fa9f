"""The API's description as one plain page: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "pre{background:#f4f4f4;padding:.7em;overflow:auto;font-size:13px}"
    "h2{border-top:1px solid #ccc;padding-top:1em}td,th{text-align:left;padding:0 1em 0 0;vertical-align:top}"
)
HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


def page(description: Mapping[str, Any]) -> str:
    """HTML for an OpenAPI description."""
    info = description["info"]
    title = escape(f"{info['title']} {info['version']}")
    body = "".join(
        _operation(method, path, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
        f"<h1>{title}</h1><p>{_text(info.get('description', ''))}</p>{body}</html>"
    )


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [
        f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
        f"<p><b>{escape(operation.get('summary', ''))}.</b> {_text(operation.get('description', ''))}</p>"
    ]
    if operation.get("parameters"):
        rows = "".join(
            f"<tr><td><code>{escape(p['name'])}</code><td>{escape(p['in'])}"
            f"<td>{escape(p.get('description', ''))}</tr>"
            for p in operation["parameters"]
        )
        parts.append(f"<table>{rows}</table>")
    for example in _examples(operation.get("requestBody", {})):
        parts.append(f"<p>Body, for example:</p>{_json(example)}")
    for status, answer in operation.get("responses", {}).items():
        parts.append(f"<p>{escape(status)}: {escape(answer.get('description', ''))}</p>")
        if status.startswith("2"):
            parts += [_json(example) for example in _examples(answer)]
    return "".join(parts)


def _examples(part: Mapping[str, Any]) -> Iterator[Any]:
    for content in part.get("content", {}).values():
        if "example" in content:
            yield content["example"]
        for example in content.get("examples", {}).values():
            yield example["value"]


def _json(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    return f"<pre>{escape(text)}</pre>"


def _text(text: str) -> str:
    return escape(text).replace("\n\n", "<p>")
