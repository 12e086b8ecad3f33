"""Which clients there are, at which versions, and which script drives each."""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CHECKS = ("chat", "stream", "tools", "json_schema", "logprobs", "error", "cancel", "responses")
"""What each client does, in the order of the table."""


@dataclass(frozen=True, slots=True)
class PythonClient:
    """A client in a virtual environment of its own; the first package is the one it is about."""

    name: str
    packages: tuple[str, ...]
    script: str
    folder: str = "python"

    @property
    def path(self) -> Path:
        return HERE / self.folder / self.script


@dataclass(frozen=True, slots=True)
class NodeClient:
    """A client among the packages of `node/package.json`."""

    name: str
    script: str

    @property
    def path(self) -> Path:
        return HERE / "node" / self.script


@dataclass(frozen=True, slots=True)
class Agent:
    """A program that calls tools, of a node package of its own; `tests.clients.agents` runs it."""

    name: str
    package: str
    version: str
    program: str
    """Its path from the folder of the packages."""


Client = PythonClient | NodeClient

CLIENTS: tuple[Client, ...] = (
    PythonClient("openai-3", ("openai==3.49.0",), "with_openai.py"),
    PythonClient("openai-2", ("openai==2.54.0",), "with_openai.py"),
    PythonClient("openai-1", ("openai==1.109.1",), "with_openai.py"),
    PythonClient("anthropic", ("anthropic==2.9.0",), "with_anthropic.py"),
    PythonClient("litellm", ("litellm[mcp]==1.106.0",), "with_litellm.py"),
    PythonClient("langchain-openai", ("langchain-openai==1.7.3",), "with_langchain.py"),
    PythonClient("pydantic-ai", ("pydantic-ai-slim[openai]==2.66.0",), "with_pydantic_ai.py"),
    PythonClient("instructor", ("instructor==1.17.0",), "with_instructor.py"),
    PythonClient("llama-index", ("llama-index-llms-openai-like==0.8.1",), "with_llama_index.py"),
    PythonClient("smolagents", ("smolagents[openai]==1.26.0",), "with_smolagents.py"),
    PythonClient("openai-agents", ("openai-agents==0.24.0",), "with_openai_agents.py"),
    PythonClient("llm", ("llm==0.36",), "with_llm.py"),
    PythonClient("lm-eval", ("lm-eval[api]==0.4.13", "pydantic==2.14.3"), "with_lm_eval.py"),
    # The version of torch keeps out the one for GPUs, where there are both.
    PythonClient("guidellm", ("guidellm==0.8.1", "torch==2.13.0"), "with_guidellm.py"),
    NodeClient("openai-npm", "openai.mjs"),
    NodeClient("vercel-ai", "ai.mjs"),
)

AGENT_CHECKS = ("edit", "turns", "cached", "answer")
"""Of an agent: it edits a file, in three turns, the second of which is nearly all in the cache; and
it gets a plain answer from the embedded model."""

AGENTS = (
    Agent(
        "claude-code",
        "@anthropic-ai/claude-code",
        "2.1.326",
        "@anthropic-ai/claude-code/bin/claude.exe",
    ),
    Agent("codex", "@openai/codex", "0.169.0", "@openai/codex/bin/codex.js"),
)

LOOPS = tuple(
    PythonClient(f"{name}-loop", packages, f"with_{name.replace('-', '_')}.py", "loops")
    for name, packages in {
        "openai": ("openai==3.49.0",),
        "anthropic": ("anthropic==2.10.0",),
        "openai-agents": ("openai-agents==0.24.0", "openai==3.49.0"),
        "pydantic-ai": ("pydantic-ai-slim[anthropic,openai]==2.68.0",),
        "langchain-anthropic": ("langchain-anthropic==1.7.7",),
        "mcp": ("mcp==2.3.0", "anthropic==2.10.0"),
        "smolagents": ("smolagents[openai]==1.26.0",),
    }.items()
)
"""Loops of SDKs and frameworks: each calls a tool and streams the answer, through a script."""

LOOP_CHECKS = ("loop",)
LOOP_SCRIPT = HERE / "loops" / "script.jsonl"
