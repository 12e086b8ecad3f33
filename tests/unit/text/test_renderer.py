"""Chat templates in their own process: hostile ones end with a sentence, others go on."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jitney.core import limits
from jitney.errors import EngineStopped, InvalidRequest, JitneyError, ModelError, NoRoom, QueueFull
from jitney.sandbox.sandbox import Gone, Sandbox
from jitney.text.chat_template import ChatTemplate, Renderer
from jitney.tokenizers.byte_tokenizer import byte_vocabulary
from tests.e2e.server.harness import wait_until
from tests.e2e.server.processes import is_alive
from tests.sandbox_for_tests import ROOT
from tests.unit.text.test_chat_template import CHATML, CHATML_SOURCE, text_of, user

VOCABULARY = byte_vocabulary()
FOR_EVER = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ON_BOMB = "{% if messages[0].content == 'bomb' %}" + FOR_EVER + "{% endif %}fine"
MEMORY_ERROR = ModelError if sys.platform == "linux" else JitneyError
"""Where address space is not limited, a text that is made in time is too long for a prompt."""

Make = Callable[..., ChatTemplate]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes templates, and ends their processes."""
    made: list[ChatTemplate] = []

    def one(source: str, **options: Any) -> ChatTemplate:
        made.append(ChatTemplate(source, VOCABULARY, **options))
        return made[-1]

    yield one
    for each in made:
        each.close()


def pids_of(renderer: Renderer) -> list[int]:
    return [each.pid for each in renderer.sandboxes if each.pid is not None]


def start_count(renderer: Renderer) -> int:
    return sum(each.start_count for each in renderer.sandboxes)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that are met sooner."""
    monkeypatch.setattr(limits, "TEMPLATE_S_MAX", 0.2)
    monkeypatch.setattr(limits, "TEMPLATE_BYTES_MAX", 2**26)


GROW = "{% set ns = namespace(x='a' * 10) %}{% for i in range(60) %}"
LONG = "{% set a = 'a' * 5000000 %}{% set b = a[1:] ~ 'a' %}"
ALWAYS = "{% for i in range(99999) %}"


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        FOR_EVER,
        LONG + ALWAYS + "{% if 'b' in a %}{% endif %}{% endfor %}",
        LONG + ALWAYS + "{% set c = a | upper %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}" + ALWAYS + "{% set ns.x = ns.x + [i] %}{% endfor %}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    ],
)
def test_a_template_that_runs_away_is_stopped(make: Make, source: str) -> None:
    """Guards time: a model file, or a chat that drives its template, must not stop the server."""
    template = make(source)
    with pytest.raises(ModelError, match=r"The chat template .*was stopped"):
        template.render(user("hi"))


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "source",
    [
        ALWAYS + "A" * 10_000 + "{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ [1] * 10**9 }}",
        "{% set ns = namespace(x=[]) %}" + LONG + ALWAYS + "{% set ns.x = ns.x + [a[1:]] %}"
        "{% endfor %}",
        GROW + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        GROW + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{{ 'x' | center(10**9) }}",
        "{{ '%*d' | format(10**9, 1) }}",
        "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
        "{{ range(99999) | map('string') | list | tojson(indent=10000) }}",
    ],
)
def test_a_template_that_swells_is_stopped(make: Make, source: str) -> None:
    """Guards memory: the bound is the kernel's, so it does not matter what takes it."""
    template = make(source)
    with pytest.raises(MEMORY_ERROR, match=r"The chat template .*was stopped"):
        template.render(user("hi"))


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ " + "(" * 50_000,
        "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
        "{% for a in b %}" * 30 + "{% endfor %}" * 30,
        "x" * (limits.TEMPLATE_CHARACTERS_MAX + 1),
        "{{ a | no }}",
        "{{ 3**(10**8) }}",
    ],
)
def test_a_template_that_cannot_be_read_is_an_error_of_the_model(
    make: Make, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards loading: the operator hears of it, in a sentence."""
    monkeypatch.setattr(limits, "TEMPLATE_COMPILE_S_MAX", 1.0)
    with pytest.raises(ModelError, match="The chat template"):
        make(source).start()


@pytest.mark.parametrize(
    "source",
    [
        "{{ cycler.__init__.__globals__.os.popen('touch MARK') }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__closure__[0] }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ (messages | attr('__class__')).mro() }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ '{x.__class__.__mro__}'.format_map({'x': 1}) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
    ],
)
def test_a_template_cannot_reach_python(
    make: Make, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the machine: no attribute leads out of the sandbox, and nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="not allowed"):
        make(source).render(user("hi"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("short")
def test_a_chat_over_the_limit_fails_alone(make: Make) -> None:
    """Guards everybody else: the next chat costs a fork, and the template is not compiled again."""
    renderer = Renderer()
    template = make(ON_BOMB, renderer=renderer)
    for _ in range(3):
        with pytest.raises(ModelError, match=r"longer than 0\.2 s; send fewer"):
            template.render(user("bomb"))
        assert template.render(user("hi")) == (("fine", True),)
    assert start_count(renderer) == 1


def test_refusals_come_back_as_they_are_made(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Guards the sentences on their way out of the process."""
    caplog.set_level("INFO", "jitney.text")
    template = make("{{ raise_exception('no <|end|> here') }}")
    with pytest.raises(InvalidRequest, match=r"refuses these messages: no <.end.> here"):
        template.render(user("hi"))
    with pytest.raises(InvalidRequest, match="cannot render"):
        make("{{ 1 // 0 }}").render(user("hi"))
    assert "ZeroDivisionError" in caplog.text


def test_long_chats_are_not_taken_for_runaway_templates() -> None:
    """Guards the limits: they are for what no chat needs."""
    template = ChatTemplate(CHATML_SOURCE, CHATML)
    messages = [{"role": "user", "content": "x" * 2000} for _ in range(3000)]
    try:
        assert len(text_of(template.render(messages))) > 6_000_000
    finally:
        template.close()


@pytest.mark.timeout(240)
def test_renders_from_many_threads_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the way to the process and back."""
    for name in ("TEMPLATE_S_MAX", "TEMPLATE_WAIT_S_MAX"):
        monkeypatch.setattr(limits, name, 60.0)
    template = ChatTemplate(CHATML_SOURCE, CHATML)
    wrong: list[str] = []

    def work(name: str) -> None:
        for _ in range(100):
            text = text_of(template.render(user(name), add_generation_prompt=False))
            if text != f"<|im_start|>user\n{name}<|im_end|>\n":
                wrong.append(text)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, (f"t{index}<" for index in range(4))))
    template.close()
    assert wrong == []


@pytest.mark.timeout(240)
def test_a_slow_chat_keeps_nobody_waiting(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the second process, the bound on waiting, and the end of both."""
    monkeypatch.setattr(limits, "TEMPLATE_S_MAX", 60.0)
    monkeypatch.setattr(limits, "TEMPLATE_QUICK_S", 0.05)
    renderer, ends = Renderer(), list[type[Exception]]()
    template = make(ON_BOMB, renderer=renderer)

    def bomb() -> None:
        try:
            template.render(user("bomb"))
        except JitneyError as error:
            ends.append(type(error))

    slow = [threading.Thread(target=bomb) for _ in range(2)]
    first, second = renderer.sandboxes
    slow[0].start()
    wait_until(first._turn.locked, "it does not begin")
    assert template.render(user("hi")) == (("fine", True),)
    assert start_count(renderer) == 2
    slow[1].start()
    wait_until(second._turn.locked, "it does not begin")
    monkeypatch.setattr(second, "_bounds", first._bounds)
    with pytest.raises(QueueFull) as caught:
        template.render(user("hi"))
    assert caught.value.retry_after_s == 60.0
    pids = pids_of(renderer)
    template.close()
    for thread in slow:
        thread.join(200)
    assert ends == [EngineStopped] * 2
    assert not any(map(is_alive, pids))
    with pytest.raises(EngineStopped):
        template.render(user("hi"))


def test_a_process_that_is_expected_is_the_one_that_is_used(make: Make) -> None:
    """Guards the start: it happens while the model loads, and once."""
    renderer = Renderer()
    renderer.spawn()
    pids = pids_of(renderer)
    assert len(pids) == 1
    template = make("a", renderer=renderer)
    template.start()
    assert (template.render(user("hi")), pids_of(renderer)) == ((("a", True),), pids)
    assert start_count(renderer) == 1


def test_a_process_that_is_not_to_be_had_is_told(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards machines without room for one more: nothing is wrong with the model."""

    def refuse(self: Sandbox) -> None:
        raise Gone("the process could not be started (no room)")

    monkeypatch.setattr(Sandbox, "_spawned", refuse)
    renderer = Renderer()
    renderer.spawn()
    with pytest.raises(NoRoom, match="no room"):
        make("a", renderer=renderer).start()
