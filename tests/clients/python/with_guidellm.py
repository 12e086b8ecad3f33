"""GuideLLM: a short load of streamed chats, with the usage in every chunk, and its report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import checks
from checks import MODEL, QUESTION

HOME = Path(os.environ["HOME"])
COUNT = 6
TOKENS = 8


def stream() -> None:
    line = json.dumps({"prompt": QUESTION, "output_tokens_count": TOKENS})
    (HOME / "prompts.jsonl").write_text(f"{line}\n" * COUNT)
    command = [str(Path(sys.executable).with_name("guidellm")), "run"]
    server = f"target={checks.URL},model={MODEL},api_key={checks.KEY}"
    command += ["--backend", f"kind=openai_http,{server}"]
    command += ["--data", f"kind=json_file,path={HOME / 'prompts.jsonl'}"]
    command += ["--profile", "kind=concurrent,streams=2"]
    command += ["--constraint", f"kind=max_requests,count={COUNT}"]
    command += ["--output", f"kind=json,path={HOME / 'report.json'}", "--disable-console"]
    subprocess.run(command, check=True)
    (benchmark,) = json.loads((HOME / "report.json").read_text())["benchmarks"]
    found = benchmark["requests"]
    assert not found["errored"], found["errored"][0]["info"]
    assert not found["incomplete"]
    assert len(found["successful"]) == COUNT
    for each in found["successful"]:
        assert each["output"]
        assert each["output_tokens"] == TOKENS
        assert each["prompt_tokens"] > 0


checks.run("guidellm", stream)
