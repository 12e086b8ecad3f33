"""What operators get: a dashboard and alerts that ask for metrics which exist, and their page."""

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
from jitney.server.batches.batches import Batches
from jitney.server.lifecycle import LAST_RESPONSES_S_MAX
from jitney.server.observe.metric_table import replica_levels, replica_sums
from jitney.server.observe.monitor import Monitor
from jitney.server.observe.prometheus_families import families
from tests.unit.server.batches.runner_for_tests import ScriptedAnswerer
from tests.unit.server.observe.records_for_tests import VIEW

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
PANELS = DASHBOARD["panels"]
PAGE = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
PAGE_LINES_MAX = 220
RULES = yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
UNIT = (DEPLOY / "jitney.service").read_text(encoding="utf-8")
UNIT_SETTINGS = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE))
NAME = re.compile(r"\b(?:jitney|vllm|llamacpp):[a-z0-9_]+")
LABELS = re.compile(r"\b(?:by|on) \(([a-z, ]+)\)")
WANTED = {
    "JitneyDown", "JitneyStuck", "JitneyQueueNearlyFull", "JitneyKvPressure", "JitneyErrorRate",
    "JitneyFirstTokenSlow",
}  # fmt: skip
SPANS_S = 10
"""How long an exporter tries to send what waits, unless it is told otherwise."""
LABEL = re.compile(r'limit="([a-z_]+)"')


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The metrics of a server that has refused one call, with batches and with a replica."""
    engine = Engine(FakeBackend(FakeSettings()), SchedulerSettings(model_len_max=100))
    metrics, totals = Monitor(engine, "tiny").metrics, engine.totals()
    batches = Batches(tmp_path_factory.mktemp("jobs"), ScriptedAnswerer(answer_at_once))
    metrics.attach_other(batches.collect)
    metrics.attach_other(lambda: families("gauge", replica_levels((VIEW,))))
    metrics.attach_other(lambda: families("counter", replica_sums((VIEW,), totals)))
    metrics.answered("/v1/models", 429, "QueueFull")
    rendered = metrics.render().decode()
    engine.close(drain_s=0)
    return rendered


async def answer_at_once(owner: str, text: str) -> None:
    """Answers a line of a batch; no line comes."""


@pytest.fixture(scope="module")
def known(text: str) -> set[str]:
    """The names of all series. Of those without one yet, such as T(B), the name follows."""
    found = list(text_string_to_metric_families(text))
    endings = {"counter": "_total", "gauge": ""}
    names = {sample.name for family in found for sample in family.samples}
    return names | {each.name + endings[each.type] for each in found if each.type in endings}


def expressions() -> list[str]:
    """Every query of the dashboard and of the alerts."""
    queries = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
    queries += [each.get("definition", "") for each in DASHBOARD["templating"]["list"]]
    return queries + [alert["expr"] for alert in ALERTS]


def test_every_metric_asked_for_is_exposed(known: set[str]) -> None:
    """Guards dashboards and alerts against names that were changed under them."""
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(asked) > 20
    assert asked - known == set()
    # The page names a histogram as a whole.
    histograms = {name.removesuffix("_count") for name in known if name.endswith("_count")}
    assert set(NAME.findall(PAGE)) - known - histograms == set()


def test_every_label_asked_for_is_exposed(text: str) -> None:
    """Guards sums by a label that no series has: they show one line without a name."""
    found = text_string_to_metric_families(text)
    labels = {label for family in found for sample in family.samples for label in sample.labels}
    groups = [group for expression in expressions() for group in LABELS.findall(expression)]
    asked = {label for group in groups for label in group.split(", ")}
    assert asked - labels == {"job", "instance"}, "only these two are added by Prometheus"


def test_the_dashboard_has_what_themisdb_watches() -> None:
    """Guards the three figures that its check list asks for: GPU Util, avg_batch_size and T(B)."""
    shown = {name for panel in PANELS for name in NAME.findall(json.dumps(panel))}
    wanted = {"pass_seconds_total", "batch_sequences_total", "batch_per_sequence_seconds"}
    assert {f"jitney:{name}" for name in wanted} <= shown


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
        assert alert["annotations"]["runbook"] == f"docs/operate.md#{alert['alert'].lower()}"


def test_every_alert_has_a_section_of_the_page_and_no_other() -> None:
    """Guards whoever is called at night: the page says what to do, and in few words."""
    sections = re.findall(r"^### (Jitney\w+)$", PAGE, re.MULTILINE)
    assert sections == [alert["alert"] for alert in ALERTS]
    assert len(PAGE.splitlines()) <= PAGE_LINES_MAX


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
