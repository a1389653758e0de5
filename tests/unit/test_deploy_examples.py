"""The files of examples/deploy name existing images, commands, options, extras and ports."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import click
import pytest
import yaml
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.celery import celery

from reliq.cli import main

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples" / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
COMPOSE = (DEPLOY / "compose.yaml").read_text("utf-8")
SERVICES = yaml.safe_load(COMPOSE)["services"]
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))
CONTAINERS = {
    container["name"]: container
    for manifest in MANIFESTS
    if manifest["kind"] == "Deployment"
    for container in manifest["spec"]["template"]["spec"]["containers"]
}
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def words(command):
    """Return the words of a command; for `sh -c TEXT`, those of the text."""
    return shlex.split(command[2]) if command[:2] == ["sh", "-c"] else command


def started():
    """Return the commands that the files start: of images, services, containers and probes."""
    found = [yaml.safe_load(line) for line in re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)]
    found += [service["command"] for service in SERVICES.values() if "command" in service]
    for container in CONTAINERS.values():
        found.append(container["command"])
        hooks = [container.get("livenessProbe"), *container.get("lifecycle", {}).values()]
        found += [hook["exec"]["command"] for hook in hooks if hook and "exec" in hook]
    return [words(command) for command in found if command[0] not in {"redis-server", "sleep"}]


def of_text(text):
    """Return the commands of reliq that a text names, such as a comment."""
    found = re.findall(r"(?<![\w/'-])reliq (?:[a-z]+(?: --[a-z-]+)*)", text)
    return [shlex.split(command) for command in found]


def parsed(command):
    """Return the context of a command's last word; fail if a word or an option is unknown."""
    name, *arguments = command
    if name == "celery":
        # A real application: the defaults of Celery's options come from one.
        context = celery.make_context(name, arguments, resilient_parsing=True)
        context.obj = CLIContext(Celery("orders"), no_color=True, workdir=None)
        context.resilient_parsing = False
    else:
        assert "reliq" == name
        context = main.make_context(name, arguments)
    while isinstance(context.command, click.Group):
        left = [*context._protected_args, *context.args]
        name, command, left = context.command.resolve_command(context, left)
        context = command.make_context(name, left, parent=context)
    return context


@pytest.mark.parametrize("command", started(), ids=" ".join)
def test_commands_parse(command):
    """The program knows the command with all its options."""
    parsed(command)


@pytest.mark.parametrize("path", [DEPLOY / "compose.yaml", *FORMS], ids=lambda path: path.name)
def test_commands_of_comments_and_forms_exist(path):
    """Every command of reliq that a comment or an issue form names exists."""
    for name, command, *options in of_text(path.read_text("utf-8")):
        _, found, _ = main.resolve_command(click.Context(main, info_name=name), [command])
        known = {option for parameter in found.params for option in parameter.opts}
        assert set(options) <= known, command


def test_the_image_is_built_from_files_that_exist():
    """Sources, extras and the application of the image exist, and Python is a supported one."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    (python,) = re.findall(r"^FROM python:([\d.]+)-slim$", DOCKERFILE, re.MULTILINE)
    assert (
        f"Programming Language :: Python :: {python}\n" in setup["metadata"]["classifiers"] + "\n"
    )
    (extras,) = re.findall(r"'/src\[(.*)\]'", DOCKERFILE)
    assert set(extras.split(",")) <= set(setup["options.extras_require"])
    copied = [source for source, _ in re.findall(r"^COPY (\S+) (\S+)$", DOCKERFILE, re.MULTILINE)]
    assert all((ROOT / source).exists() for source in copied)
    build = SERVICES["worker"]["build"]
    assert ROOT == (DEPLOY / build["context"]).resolve()
    assert DEPLOY / "Dockerfile" == ROOT / build["dockerfile"]
    for command in started():
        if command[0] == "celery":
            assert f"examples/{command[command.index('-A') + 1]}.py" in copied


def test_the_images_are_the_built_one_and_a_supported_redis():
    """All services run the built image, or a Redis of a supported version that keeps everything."""
    (tag,) = re.findall(r"docker build .* -t (\S+) \.$", DOCKERFILE, re.MULTILINE)
    redis = SERVICES["redis"]
    others = {service["image"] for name, service in SERVICES.items() if name != "redis"}
    assert {tag} == others | {container["image"] for container in CONTAINERS.values()}
    major, minor = re.fullmatch(r"redis:(\d+)\.(\d+)-alpine", redis["image"]).groups()
    assert (6, 2) <= (int(major), int(minor))
    options = dict(zip(redis["command"][1::2], redis["command"][2::2], strict=True))
    assert ("yes", "noeviction") == (options["--appendonly"], options["--maxmemory-policy"])


def test_environment_and_ports():
    """The variables are those of the commands, and each published port is the command's own."""
    pages = {name: service for name, service in SERVICES.items() if name in {"web", "exporter"}}
    places = [(service["command"], service["environment"]) for service in pages.values()]
    places += [
        (container["command"], {entry["name"]: "" for entry in container["env"]})
        for name, container in CONTAINERS.items()
        if name == "exporter"
    ]
    for command, environment in places:
        known = {option.envvar for option in parsed(command).command.params} | {"RELIQ_WEB_USERS"}
        assert set(environment) <= known
    for service in pages.values():
        port = parsed(service["command"]).params["port"]
        assert [f"127.0.0.1:{port}:{port}"] == service["ports"]
    exporter = CONTAINERS["exporter"]
    port = parsed(exporter["command"]).params["port"]
    assert [{"containerPort": port}] == exporter["ports"]
    for probe in (exporter["readinessProbe"], exporter["livenessProbe"]):
        assert {"path": "/metrics", "port": port} == probe["httpGet"]


def test_the_parts_of_the_manifests_name_each_other():
    """Selectors, secrets and the scaled deployment exist under the names that refer to them."""
    named = {(part["kind"], part["metadata"]["name"]): part for part in MANIFESTS}
    for part in MANIFESTS:
        if part["kind"] == "Deployment":
            labels = part["spec"]["template"]["metadata"]["labels"]
            assert part["spec"]["selector"]["matchLabels"] == labels
    for container in CONTAINERS.values():
        for entry in container["env"]:
            secret = entry["valueFrom"]["secretKeyRef"]
            assert secret["key"] in named["Secret", secret["name"]]["stringData"]
    scaled = named["ScaledObject", "shop-worker"]
    assert ("Deployment", scaled["spec"]["scaleTargetRef"]["name"]) in named
    (trigger,) = scaled["spec"]["triggers"]
    document = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    (shown,) = re.findall(r"^```yaml\n(triggers:.*?)^```$", document, re.MULTILINE | re.DOTALL)
    assert yaml.safe_load(shown)["triggers"] == [trigger]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_issue_forms_have_the_hosts_fields(path):
    """A form has the fields that the host requires, and unique ids."""
    form = yaml.safe_load(path.read_text("utf-8"))
    if path.name == "config.yml":
        assert {"blank_issues_enabled": True} == form
        return
    assert {"name", "description", "body"} <= set(form)
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    assert len(asked) == len({field["id"] for field in asked})
    assert all(field["attributes"]["label"] for field in asked)
