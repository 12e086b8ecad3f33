"""What is shipped for operators: a dashboard and alerts that ask for metrics which exist."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.config import ServeSettings
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.engine import STOP_S, Engine
from jitney.server import limits
from jitney.server.lifecycle import LAST_RESPONSES_S_MAX
from jitney.server.observe.monitor import Monitor

DEPLOY = Path(__file__).parents[3] / "deploy"
PANELS = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))["panels"]
RULES = yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
UNIT = (DEPLOY / "jitney.service").read_text(encoding="utf-8")
UNIT_SETTINGS = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE))
NAME = re.compile(r"\bjitney:[a-z0-9_]+")
WANTED = {
    "JitneyDown", "JitneyStuck", "JitneyQueueNearlyFull", "JitneyKvPressure", "JitneyErrorRate",
    "JitneyFirstTokenSlow",
}  # fmt: skip
SPANS_S = 10
"""How long an exporter tries to send what waits, unless it is told otherwise."""
LABEL = re.compile(r'limit="([a-z_]+)"')


@pytest.fixture(scope="module")
def text() -> str:
    """The metrics of a server that has answered nothing yet."""
    engine = Engine(FakeBackend(FakeSettings()), SchedulerSettings(model_len_max=100))
    metrics = Monitor(engine, "tiny").metrics
    metrics.answered("/v1/models", 200)
    rendered = metrics.render().decode()
    engine.close(drain_s=0)
    return rendered


def expressions() -> list[str]:
    """Every query of the dashboard and of the alerts."""
    queries = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
    return queries + [alert["expr"] for alert in ALERTS]


def test_every_metric_asked_for_is_exposed(text: str) -> None:
    """Guards dashboards and alerts against names that were changed under them."""
    families = list(text_string_to_metric_families(text))
    known = {sample.name for family in families for sample in family.samples}
    # Families without a sample yet, such as refusals by error, are known by their name.
    known |= {f"{family.name}_total" for family in families}
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(asked) > 20
    assert asked - known == set()


def test_every_limit_asked_for_is_exposed(text: str) -> None:
    """Guards the lines that show a bound beside what it bounds."""
    asked = {name for expression in expressions() for name in LABEL.findall(expression)}
    assert asked
    for name in asked:
        assert f'jitney:limit{{limit="{name}"}}' in text


def test_every_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    """Guards whoever is woken by one."""
    assert {alert["alert"] for alert in ALERTS} >= WANTED
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("critical", "warning"), alert["alert"]
        assert alert["annotations"]["summary"].endswith("."), alert["alert"]


def test_the_unit_waits_for_the_whole_of_a_shutdown() -> None:
    """Guards the end of a drain: whoever is killed in it tells nobody, and sends no spans."""
    whole_s = ServeSettings().shutdown_timeout + STOP_S + 2 * LAST_RESPONSES_S_MAX + SPANS_S
    assert int(UNIT_SETTINGS["TimeoutStopSec"]) > whole_s


def test_the_unit_bounds_what_the_service_may_take() -> None:
    """Guards the machine: without a bound a service that grows takes its neighbours with it, and
    one that is ended whole for its backend's memory loses every answer."""
    found = UNIT_SETTINGS
    high, most = (int(found[name].removesuffix("%")) for name in ("MemoryHigh", "MemoryMax"))
    assert 0 < high < most < 100
    assert found["OOMPolicy"] == "continue"
    assert int(found["TasksMax"]) >= 512
    assert int(found["LimitNOFILE"]) >= limits.CONNECTIONS_MAX + limits.FILES_KEPT


def test_panels_do_not_overlap() -> None:
    """Guards the dashboard's layout."""
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
