"""The containers for operators: what they mount is there, and what they say to jitney is known.

Nothing here starts a container. What only a container could show is called untried in
deploy/README.md.
"""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from jitney.cli.flags import parse
from jitney.cli.verbs import all_verbs
from jitney.config import ServeSettings
from jitney.config.resolve import resolve
from jitney.engine.engine import STOP_S
from jitney.errors import ConfigError
from jitney.server.lifecycle import LAST_RESPONSES_S_MAX

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
UNIT = (DEPLOY / "jitney.service").read_text(encoding="utf-8")
README = (DEPLOY / "README.md").read_text(encoding="utf-8")
SERVE = next(verb for verb in all_verbs() if verb.path == ("serve",))
SECRETS = "/run/secrets/"


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


SERVICES = read("compose.yaml")["services"]
FILES = {name: each["file"] for name, each in read("compose.yaml")["secrets"].items()}
OURS = SERVICES["jitney"]
PROMETHEUS = read("compose/prometheus.yml")


def mounts(service: str) -> dict[str, str]:
    """What a service mounts, by the place in its container."""
    found = {}
    for line in SERVICES[service]["volumes"]:
        source, place = line.split(":")[:2]
        found[place] = source
    return found


def instruction(name: str) -> str:
    """The last one of this name in the Dockerfile; that is in the image for the plain server."""
    return str(re.findall(rf"^{name} (.+)$", DOCKERFILE, re.MULTILINE)[-1]).strip()


def command_lines() -> dict[str, list[str]]:
    """Every command line of a server that is shipped."""
    (exec_start,) = re.findall(r"^ExecStart=\S+/jitney (.+)$", UNIT, re.MULTILINE)
    return {
        "Dockerfile": json.loads(instruction("CMD")),
        "compose.yaml": OURS["command"],
        "jitney.service": shlex.split(exec_start),
    }


def check_words(words: list[str]) -> None:
    """Raises ConfigError where jitney would."""
    assert words[0] == "serve"
    resolve(parse(SERVE, words[1:]).flags, None, {})


@pytest.mark.parametrize("file", command_lines())
def test_every_flag_is_known(file: str) -> None:
    """Guards a first start: an unknown flag ends it, and it would be started again and again."""
    check_words(command_lines()[file])
    with pytest.raises(ConfigError, match="--keys"):
        check_words([*command_lines()[file], "--keys", "x"])


def test_every_variable_is_known() -> None:
    """Guards settings in the environment, of the unit and of the containers."""
    given = dict(re.findall(r"^Environment=(JITNEY_\w+)=(.*)$", UNIT, re.MULTILINE))
    assert given
    resolve({}, None, {**given, **OURS["environment"]})
    with pytest.raises(ConfigError, match="JITNEY_KEYS"):
        resolve({}, None, {**given, "JITNEY_KEYS": "x"})


def test_what_is_mounted_exists_or_is_made_by_the_readme() -> None:
    """Guards against folders that a container engine makes in place of a file that is missing."""
    volumes = read("compose.yaml")["volumes"]
    for service in SERVICES:
        for source in mounts(service).values():
            assert source in volumes or (DEPLOY / source).is_file(), source
        assert set(SERVICES[service]["secrets"]) <= FILES.keys()
    for file in FILES.values():
        name = file.removeprefix("./")
        assert f"> {name}" in README, f"deploy/README.md does not say how to make {file}"
        ignored = ("git", "check-ignore", "-q", f"deploy/{name}")
        assert subprocess.run(ignored, cwd=ROOT, check=False).returncode == 0, name


def test_nothing_is_open_to_other_machines_and_every_service_is_watched() -> None:
    """Guards a machine on the internet, and whoever asks `docker compose ps` how it is."""
    assert instruction("HEALTHCHECK")
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert name == "jitney" or service["healthcheck"]["test"], name
        assert name == "jitney" or re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
        for secret in service["secrets"]:
            assert SECRETS + secret in json.dumps(service) + str(PROMETHEUS), secret


def test_prometheus_finds_the_server_its_key_and_the_alerts() -> None:
    """Guards the way from a metric to an alert."""
    (job,) = PROMETHEUS["scrape_configs"]
    # The alerts and the dashboard ask for this name.
    assert job["job_name"] == "jitney"
    port = OURS["ports"][0].rpartition(":")[2]
    assert job["static_configs"] == [{"targets": [f"jitney:{port}"]}]
    key = job["authorization"]["credentials_file"]
    assert key.removeprefix(SECRETS) in SERVICES["prometheus"]["secrets"]
    (rules,) = PROMETHEUS["rule_files"]
    assert mounts("prometheus")[f"/etc/prometheus/{rules}"] == "./alerts.yaml"
    assert instruction("EXPOSE") == port
    assert f":{port}/health" in instruction("HEALTHCHECK")


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    """Guards the way from a metric to a panel."""
    places = mounts("grafana")
    (source,) = read("compose/datasource.yaml")["datasources"]
    url = urlsplit(source["url"])
    assert url.hostname in SERVICES
    assert source["isDefault"]
    assert str(url.port) == SERVICES[url.hostname]["ports"][0].rpartition(":")[2]
    (provider,) = read("compose/dashboards.yaml")["providers"]
    dashboard = f"{provider['options']['path']}/jitney.json"
    assert places[dashboard] == "./grafana-dashboard.json"
    folder = "/etc/grafana/provisioning"
    assert places[f"{folder}/datasources/jitney.yaml"] == "./compose/datasource.yaml"
    assert places[f"{folder}/dashboards/jitney.yaml"] == "./compose/dashboards.yaml"


def test_the_container_waits_for_the_whole_of_a_shutdown() -> None:
    """Guards the end of a drain, as the unit does."""
    whole_s = ServeSettings().shutdown_timeout + STOP_S + 2 * LAST_RESPONSES_S_MAX
    assert int(OURS["stop_grace_period"].removesuffix("s")) > whole_s


def test_the_image_has_what_the_package_needs_and_is_not_root() -> None:
    """Guards a build: extras that are gone, files that are not copied, versions that drift."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extras in re.findall(r"whl\)\[([a-z,]+)\]", DOCKERFILE):
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    copied = " ".join(re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)).split()
    assert {project["readme"], *project.get("license-files", ())} <= set(copied)
    installs = re.findall(r"pip install (.+)", DOCKERFILE)
    assert installs
    assert all("-c /dist/constraints.txt" in line for line in installs)
    assert instruction("USER") == "jitney"
    home = re.search(r"--home-dir (\S+) jitney", DOCKERFILE)
    assert home is not None
    # Models, converted ones and batches are below the home folder, unless a setting moves them.
    assert mounts("jitney")[home[1]] in read("compose.yaml")["volumes"]
