"""``reliq schema``: the JSON Schemas of the ``--json`` output, generated from the types."""

from __future__ import annotations

import types
import typing
from typing import Any

import click

from reliq import admin
from reliq.batches.jobs import STATES as JOB_STATES
from reliq.migration.migrate import Plan, Step

from . import console as out

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_WHOLE: Schema = {"type": "integer"}
_FLAG: Schema = {"type": "boolean"}
_ANY_OBJECT: Schema = {"type": "object"}
_PLAIN = {str: _TEXT, int: _WHOLE, float: _NUMBER, bool: _FLAG, object: {}, Any: {}}


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _of_type(hint: Any) -> Schema:
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {types.UnionType, typing.Union}:
        (kept,) = (item for item in arguments if item is not type(None))
        return _nullable(_of_type(kept))
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of_type(arguments[1])}
    return {"type": "array", "items": _of_type(arguments[0])}


def _object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _of(kind: type, **more: Schema) -> Schema:
    hints = typing.get_type_hints(kind)
    return _object(**{name: _of_type(hint) for name, hint in hints.items()}, **more)


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


_BROKER = {"broker": _TEXT}
_QUEUE = {**_BROKER, "queue": _TEXT}
_COUNTED = _list(_object(**_QUEUE, count=_WHOLE, dry_run=_FLAG))
_STATUS = _object(
    brokers=_list(_of(admin.BrokerInfo, reachable=_FLAG, error=_nullable(_TEXT))),
    queues=_list(_of(admin.QueueReport, **_BROKER)),
    untold=_list(_of(admin.Untold, **_BROKER)),
)
_BATCH = {
    **_of(admin.BatchInfo, **_BROKER)["properties"],
    "counts": _object(**dict.fromkeys(JOB_STATES, _WHOLE)),
    "failures": _list(_of(admin.JobFailure)),
}
_LIMITS = _list(_of(admin.QueueLimits, **_BROKER))
_MESSAGES = _list(_of(admin.Message, **_BROKER))
_ROUTE = _object(exchange=_TEXT, routing_key=_TEXT, publishes=_WHOLE, oldest_s=_NUMBER)
_SPOOL = _object(
    spool=_TEXT,
    publishes=_WHOLE,
    oldest_s=_NUMBER,
    bytes=_WHOLE,
    routes=_list(_ROUTE),
    expired=_WHOLE,
    doubtful=_WHOLE,
)

SCHEMAS: dict[str, Schema] = {
    "acl": {"type": "object", "additionalProperties": _TEXT},
    "audit": _list(
        {"anyOf": [_of(admin.AuditResult, **_BROKER), _of(admin.BatchAudit, **_BROKER)]}
    ),
    "batch cancel": _list(_object(**_BROKER, batch=_TEXT, cancelled=_FLAG)),
    "batch list": _list(_of(admin.BatchInfo, **_BROKER)),
    "batch seal": _list(_object(**_BROKER, batch=_TEXT, sealed=_FLAG)),
    "batch show": _list(_object(**_BATCH, jobs=_list(_of(admin.JobInfo)))),
    "batch watch": _object(**_BATCH, rate=_nullable(_NUMBER), more_failures=_FLAG),
    "consumers": _list(_of(admin.Consumer, **_BROKER, since_s=_NUMBER, seen_s=_NUMBER)),
    "dead export": _COUNTED,
    "dead import": _COUNTED,
    "dead list": _MESSAGES,
    "dead purge": _COUNTED,
    "dead replay": _COUNTED,
    "dead show": _of(
        admin.Message,
        **_BROKER,
        headers=_ANY_OBJECT,
        properties=_ANY_OBJECT,
        exchange=_nullable(_TEXT),
        routing_key=_nullable(_TEXT),
    ),
    "doctor": _list(_of(admin.Finding, **_BROKER)),
    "embedded backup": _object(to=_TEXT, bytes=_WHOLE),
    "embedded repair": _object(copy=_TEXT, report=_TEXT),
    "embedded status": _object(
        **dict.fromkeys(("server", "log"), _TEXT),
        **dict.fromkeys(("running", "refuses_messages"), _FLAG),
        **dict.fromkeys(("disk", "free"), _WHOLE),
        **dict.fromkeys(("started_by", "cgroup", "error"), _nullable(_TEXT)),
        **dict.fromkeys(("maxmemory", "clients", "memory", "pid", "nice"), _nullable(_WHOLE)),
        **dict.fromkeys(("uptime_s", "error_at"), _nullable(_NUMBER)),
    ),
    "embedded stop": _object(stopped=_FLAG),
    **dict.fromkeys(("limit clear", "limit set", "limit show"), _LIMITS),
    "migrate": {"anyOf": [_list(_of(Plan)), _list(_of(Step, queue=_TEXT))]},
    "move": {"type": "object", "additionalProperties": _WHOLE},
    "peek": _MESSAGES,
    "queue delete": _list(_object(**_QUEUE, count=_WHOLE)),
    "queue pause": _list(_object(**_QUEUE, paused=_FLAG)),
    "queue purge": _COUNTED,
    "queue resume": _list(_object(**_QUEUE, paused=_FLAG)),
    "queue set": _list(_object(**_QUEUE, settings=_ANY_OBJECT)),
    "spool forward": _object(forwarded=_WHOLE, left=_WHOLE),
    "spool status": _SPOOL,
    "status": _STATUS,
    "top": _STATUS,
}
"""Command -> the schema of its ``--json`` output; of each line for ``top`` and ``batch watch``."""


@click.command()
@click.argument("command", nargs=-1)
def schema(command: tuple[str, ...]) -> None:
    """Print the JSON Schema of the --json output of COMMAND, or of all commands.

    \b
    Examples:
      reliq schema status
      reliq schema dead list
    """
    name = " ".join(command)
    if name and name not in SCHEMAS:
        raise click.UsageError(f"no schema for {name!r}; expected one of {', '.join(SCHEMAS)}")
    chosen = SCHEMAS[name] if name else {"properties": SCHEMAS, "type": "object"}
    out.dump({"$schema": "https://json-schema.org/draft/2020-12/schema", **chosen})
