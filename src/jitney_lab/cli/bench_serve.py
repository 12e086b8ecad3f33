"""`jitney bench serve`: load on a running server. Main thread.

Tests: tests/unit/lab/cli/test_bench_serve.py and tests/e2e/test_bench.py.
"""

import json
import math
from dataclasses import replace
from datetime import datetime
from functools import partial

from rich.console import Console

from jitney.cli.flags import SERVER_URL
from jitney.cli.progress_bar import progress_bar
from jitney.config import Resolved
from jitney.errors import ConfigError
from jitney_lab.bench import serve_load
from jitney_lab.bench.http_target import (
    CHAT,
    COMPLETIONS,
    HttpTarget,
    check_address,
    check_header,
    check_key,
    served_model,
)
from jitney_lab.bench.report import FACTS, Result
from jitney_lab.bench.serve_load import Reporting
from jitney_lab.bench.timing import METRICS, RequestTimes, read_goodput
from jitney_lab.bench.workload import Workload
from jitney_lab.cli.bench_result import check_folder, check_number, finish
from jitney_lab.cli.load_options import (
    PREFIXES,
    RANDOM,
    TRACE,
    dataset_of,
    described,
    flag_of,
    workload_of,
)
from jitney_lab.cli.result_file import ResultFile
from jitney_lab.cli.serve_load_verb import ServeLoadOptions

BACKENDS = {"openai": COMPLETIONS, "vllm": COMPLETIONS, "openai-chat": CHAT}
"""vLLM's names for what is asked for, with the usual path of each."""

SAMPLING_FIELDS = (
    *("top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
)
SAMPLING_BOUNDS = (-1e6, 1e6)
"""Only what JSON cannot say is refused here; the server knows the rest."""


def run_serve(options: ServeLoadOptions, resolved: Resolved) -> None:
    """Run `jitney bench serve`."""
    del resolved
    check_folder(options.output)
    file = ResultFile.of(options)
    metadata = dict(map(_pair, options.metadata))
    reporting = Reporting(
        max_concurrency=options.max_concurrency,
        warmup_count=options.num_warmups,
        percentiles=_percentiles(options.metric_percentiles),
        metrics=_metrics(options.percentile_metrics),
        goodput=read_goodput(options.goodput, METRICS),
    )
    workload = workload_of(options)
    target = _target(options)
    result, requests = _measured(
        target, workload, reporting, Console(stderr=True, quiet=options.disable_tqdm)
    )
    model = {"model_id": options.model_name or target.model}
    told = replace(result, figures=_asked(options, target, metadata) | result.figures | model)
    save = None
    if file is not None:
        more = serve_load.details(requests) if options.save_detailed else {}
        save = partial(file.write, more=more)
    finish(told, options.seed, options.output, save=save)


def _measured(
    target: HttpTarget, workload: Workload, reporting: Reporting, console: Console
) -> tuple[Result, list[RequestTimes]]:
    with progress_bar(console) as bar:
        task = bar.add_task("requests", total=len(workload.jobs))

        def ended(times: RequestTimes) -> None:
            bar.advance(task)

        return serve_load.measure(target, workload, reporting, ended)


def _target(options: ServeLoadOptions) -> HttpTarget:
    """The server, and how it is asked. Raises a SetupError."""
    base_url, endpoint = _address(options), _endpoint(options)
    check_address(base_url, endpoint)
    check_key(options.api_key)
    if options.insecure and not base_url.startswith("https:"):
        raise ConfigError("--insecure would not be used without https; leave it out.")
    headers = _headers(options)
    body = _body(options)
    name = options.served_model_name or options.model_name
    if name is None:
        name = served_model(
            base_url, options.api_key, headers=headers, is_checked=not options.insecure
        )
    return HttpTarget(
        base_url=base_url,
        endpoint=endpoint,
        model=name,
        seed=options.seed,
        api_key=options.api_key,
        headers=headers,
        is_checked=not options.insecure,
        ignores_eos=_ignores_eos(options),
        temperature=options.temperature,
        extra_body=body,
    )


def _address(options: ServeLoadOptions) -> str:
    if options.host is None and options.port is None:
        return options.base_url or SERVER_URL
    if options.base_url is not None:
        flag = "--port" if options.host is None else "--host"
        raise ConfigError(f"{flag} would not be used with --base-url; leave one of the two out.")
    host = options.host or "127.0.0.1"
    # It is not shown: a name before @ may be a secret.
    if any(sign in host for sign in "/@?#"):
        raise ConfigError("--host is only a name or a number; give an address with --base-url.")
    port = 8000 if options.port is None else options.port
    check_number("--port", port, 1, 65535)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _endpoint(options: ServeLoadOptions) -> str:
    backend = options.backend
    if backend is None:
        return options.endpoint or COMPLETIONS
    if backend not in BACKENDS:
        raise ConfigError(
            f"--backend {backend} is not taken here; there are {', '.join(BACKENDS)}, for the "
            "completions and chats of OpenAI's interface."
        )
    endpoint = options.endpoint or BACKENDS[backend]
    if ("chat" in endpoint) is not (BACKENDS[backend] == CHAT):
        # A query of the path may hold a secret.
        path = endpoint.partition("?")[0]
        raise ConfigError(
            f"--backend {backend} does not go with --endpoint {path}; openai-chat is for paths "
            "with chat in them, the others for all others."
        )
    return endpoint


def _headers(options: ServeLoadOptions) -> dict[str, str]:
    """More headers; a value may be secret, and is never shown. Raises ConfigError."""
    headers = {}
    for word in options.header:
        name, sign, value = word.partition("=")
        if not sign:
            raise ConfigError("--header has no = in it; give NAME=VALUE, such as x-tenant=blue.")
        check_header(name, value)
        headers[name] = value
    if options.api_key is not None and "authorization" in map(str.lower, headers):
        raise ConfigError("--api-key and --header both set authorization; leave one out.")
    return headers


def _body(options: ServeLoadOptions) -> dict[str, object]:
    """More fields of each request. Raises ConfigError."""
    check_number("--temperature", options.temperature, *SAMPLING_BOUNDS)
    body: dict[str, object] = {}
    for name in SAMPLING_FIELDS:
        value = getattr(options, name)
        if value is not None:
            check_number(flag_of(name), value, *SAMPLING_BOUNDS)
            body[name] = value
    try:
        more = json.loads(options.extra_body or "{}")
        # Python reads NaN, which JSON does not have.
        json.dumps(more, allow_nan=False)
    except (ValueError, RecursionError):
        more = None
    if not isinstance(more, dict):
        raise ConfigError(
            """--extra-body is not a JSON object; for example '{"reasoning_effort": "low"}'."""
        )
    return body | more


def _ignores_eos(options: ServeLoadOptions) -> bool:
    """As asked; else where the lengths of answers are drawn or those of a trace."""
    if options.ignore_eos is not None:
        return options.ignore_eos
    return dataset_of(options) in (RANDOM, PREFIXES, TRACE)


def _asked(
    options: ServeLoadOptions, target: HttpTarget, metadata: dict[str, str]
) -> dict[str, object]:
    """What was asked for, for the result: nothing secret. The names are vLLM's where it has them.

    Metadata have a place of their own as well, because figures and facts of the same name are
    stronger.
    """
    backend = options.backend or ("openai-chat" if "chat" in target.endpoint else "openai")
    return {
        **{name: value for name, value in metadata.items() if name not in FACTS},
        "metadata": metadata,
        "date": datetime.now().astimezone().strftime("%Y%m%d-%H%M%S"),
        "backend": backend,
        "endpoint_type": backend,
        "label": options.label or backend,
        # No tokenizer is loaded; the server counts.
        "tokenizer_id": None,
        # A query of the path may hold a secret.
        "endpoint": target.endpoint.partition("?")[0],
        "ignore_eos": target.ignores_eos,
        "temperature": target.temperature,
        # Only the names: a value may be a secret.
        "extra_body": sorted(target.extra_body),
        "num_warmups": options.num_warmups,
        **described(options),
    }


def _pair(word: str) -> tuple[str, str]:
    name, sign, value = word.partition("=")
    if not sign or not name.strip():
        raise ConfigError(f"--metadata {word} is not KEY=VALUE; for example version=1.2.")
    return name.strip(), value.strip()


def _metrics(text: str | None) -> tuple[str, ...]:
    names = METRICS if text is None else tuple(word.strip() for word in text.split(","))
    if not set(names) <= set(METRICS):
        raise ConfigError(
            f"--percentile-metrics {text} is not a list of {', '.join(METRICS)}; for example "
            "ttft,itl."
        )
    return tuple(name for name in METRICS if name in names)


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = (math.nan,)
    if not all(0 <= share <= 100 for share in found):
        raise ConfigError(
            f"--metric-percentiles {text} is not a list of numbers from 0 to 100; "
            "for example 50,95,99."
        )
    return found
