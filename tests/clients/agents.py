"""Agents as people run them, headless: each mends a word in a file, through scripted answers.

A script has the calls of tools that a model would write, so what is tested is the way of prompts,
calls and results between an agent and the server. Then the embedded model answers a plain question.
Nothing but this machine can be reached.
"""

import json
import os
import re
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any  # Any: JSON

from tests.clients.catalog import Agent
from tests.clients.server import Server, serving

AGENT_S_MAX = 300
TASK = "Mend the typo in notes.txt."
BEFORE, AFTER = "The bus is lat.\n", "The bus is late.\n"
DONE = "The bus is late again."
QUESTION = "Why is the sky blue? Answer in one sentence."
TURNS = 3
COMPUTED_MAX = 0.01
"""The share of the second prompt that may be computed: its beginning was the first one."""

_ANSWERED = re.compile(r"POST /v1/(?:messages|responses)\S* 200 .* tokens=(\d+)\+\d+")
_PREFILL = re.compile(r"(\S+) prefill (\d+)")
_DEAD = "http://127.0.0.1:9"
"""A proxy that is not there, for every other address."""

Call = dict[str, Any]


def run_agent(agent: Agent, program: Path, folder: Path, threads: int) -> dict[str, str]:
    """For each check what went wrong; nothing where it passed."""
    return {
        **_edit(agent, program, folder / f"{agent.name}.log"),
        "answer": _answer(agent, program, folder / f"{agent.name}-model.log", threads),
    }


def _edit(agent: Agent, program: Path, log: Path) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as home:
        work = Path(home) / "work"
        work.mkdir()
        notes, script = work / "notes.txt", Path(home) / "script.jsonl"
        notes.write_text(BEFORE, encoding="utf-8")
        lines = [
            {"turn": at, "calls": [call]} for at, call in enumerate(CALLS[agent.name](notes), 1)
        ]
        script.write_text("\n".join(map(json.dumps, [*lines, {"text": DONE}])), encoding="utf-8")
        with serving(1, log, "--backend", "fake", "--script", str(script)) as server:
            said = _run(agent, program, server, work, TASK)
            computed = _computed(server)
        text = notes.read_text(encoding="utf-8")
    prompts = [int(count) for count in _ANSWERED.findall(log.read_text(encoding="utf-8"))]
    return {
        "edit": "" if text == AFTER and DONE in said else f"{text!r} after it said: {said[-2000:]}",
        "turns": "" if len(prompts) == TURNS else f"prompts of {prompts} tokens",
        "cached": _why_not_cached(prompts, computed),
    }


def _why_not_cached(prompts: list[int], computed: list[int]) -> str:
    if len(prompts) == len(computed) > 1 and computed[1] <= COMPUTED_MAX * prompts[1]:
        return ""
    return f"of prompts of {prompts} tokens {computed} were computed"


def _answer(agent: Agent, program: Path, log: Path, threads: int) -> str:
    with tempfile.TemporaryDirectory() as home:
        work = Path(home) / "work"
        work.mkdir()
        with serving(threads, log) as server:
            said = _run(agent, program, server, work, QUESTION)
    is_answered = _ANSWERED.search(log.read_text(encoding="utf-8")) and said.strip()
    return "" if is_answered else f"it said: {said[-2000:]}"


def _run(agent: Agent, program: Path, server: Server, work: Path, text: str) -> str:
    """Run an agent on a task; what it says at the end."""
    given = {
        "PATH": os.environ["PATH"],
        "HOME": str(work.parent),
        "HTTP_PROXY": _DEAD,
        "HTTPS_PROXY": _DEAD,
        "NO_PROXY": "127.0.0.1",
    }
    command, more = COMMANDS[agent.name](program, server, work.parent, text)
    try:
        done = subprocess.run(
            command,
            cwd=work,
            env={**given, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=AGENT_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"nothing within {AGENT_S_MAX} s"
    return done.stdout if done.returncode == 0 else f"{done.returncode}: {done.stderr}"


def _computed(server: Server) -> list[int]:
    """The prompt tokens that were computed for each request, in their order."""
    asked = urllib.request.Request(
        f"{server.url}/debug/trace", headers={"Authorization": f"Bearer {server.key}"}
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        events = json.load(answer)["traceEvents"]
    counts: dict[str, int] = {}
    for event in events:
        found = _PREFILL.fullmatch(event["name"])
        if found is not None:
            counts[found[1]] = counts.get(found[1], 0) + int(found[2])
    return list(counts.values())


def _claude(
    program: Path, server: Server, home: Path, text: str
) -> tuple[list[str], Mapping[str, str]]:
    command = [str(program), "-p", text, "--model", server.model, "--allowedTools", "Read", "Edit"]
    given = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": server.key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    # Without its own instructions the prompt is short enough for the embedded model.
    return ([*command, "--bare"] if text == QUESTION else command), given


def _codex(
    program: Path, server: Server, home: Path, text: str
) -> tuple[list[str], Mapping[str, str]]:
    folder = home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(
        f'model = "{server.model}"\n'
        'model_provider = "jitney"\n'
        "[model_providers.jitney]\n"
        'name = "jitney"\n'
        f'base_url = "{server.url}/v1"\n'
        'env_key = "JITNEY_API_KEY"\n'
        'wire_api = "responses"\n',
        encoding="utf-8",
    )
    command = [str(program), "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"]
    return [*command, text], {"JITNEY_API_KEY": server.key, "CODEX_HOME": str(folder)}


COMMANDS: Mapping[str, Callable[[Path, Server, Path, str], tuple[list[str], Mapping[str, str]]]] = {
    "claude-code": _claude,
    "codex": _codex,
}
"""How each is run on a task, and what its environment says."""

CALLS: Mapping[str, Callable[[Path], list[Call]]] = {
    "claude-code": lambda notes: [
        {"name": "Read", "arguments": {"file_path": str(notes)}},
        {
            "name": "Edit",
            "arguments": {"file_path": str(notes), "old_string": "lat.", "new_string": "late."},
        },
    ],
    "codex": lambda notes: [
        {"name": "exec_command", "arguments": {"cmd": f"cat {notes}"}},
        {"name": "exec_command", "arguments": {"cmd": f"sed -i s/lat/late/ {notes}"}},
    ],
}
"""The calls of its own tools with which it reads the file and edits it."""
