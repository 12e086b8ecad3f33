"""Metrics: the truth of their totals, their names, their bounds, and that every limit is there."""

import re
from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core import limits as core_limits
from jitney.core.batch import Batch, Outcome
from jitney.core.counters import NAMES
from jitney.core.params import SamplingParams
from jitney.core.request import Priority, Request, RequestId
from jitney.core.scheduler_settings import Policy, SchedulerSettings
from jitney.engine.engine import Engine
from jitney.engine.stats import Statistics
from jitney.errors import ContextLengthExceeded
from jitney.server import limits
from jitney.server.http.connections import connections_max
from jitney.server.observe.metric_table import replica_levels, replica_sums
from jitney.server.observe.metrics import LIMIT_LABELS
from jitney.server.observe.monitor import Monitor
from jitney.server.observe.prometheus_families import families
from tests.unit.server.observe.records_for_tests import SNAPSHOT, VIEW

WAIT_S = 60.0
KV_STATES = ("used", "cached", "free")
KINDS = ("prefill", "decode")
LABELS = {"model_name": "tiny", "engine": "0"}
FIRST_TOKEN = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
    80, 160, 640, 2560,
]  # fmt: skip
TOKEN_GAP = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
]  # fmt: skip
LATENCY = [
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
]  # fmt: skip
VLLM_HISTOGRAMS: dict[str, list[float]] = {
    "time_to_first_token_seconds": FIRST_TOKEN,
    "inter_token_latency_seconds": TOKEN_GAP,
    "request_time_per_output_token_seconds": TOKEN_GAP,
    "e2e_request_latency_seconds": LATENCY,
    "request_queue_time_seconds": LATENCY,
    "request_inference_time_seconds": LATENCY,
    "request_prefill_time_seconds": LATENCY,
    "request_decode_time_seconds": LATENCY,
    "request_params_n": [1, 2, 5, 10, 20],
    "iteration_tokens_total": [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384],
    "request_prompt_tokens": [1, 2, 5, 10, 20, 50, 100, 200],
    "request_generation_tokens": [1, 2, 5, 10, 20, 50, 100, 200],
    "request_max_num_generation_tokens": [1, 2, 5, 10, 20, 50, 100, 200],
    "request_params_max_tokens": [1, 2, 5, 10, 20, 50, 100, 200],
    "request_prefill_kv_computed_tokens": [1, 2, 5, 10, 20, 50, 100, 200],
}
LLAMACPP = {
    "counter": {
        "prompt_tokens_total", "prompt_tokens_cached_total", "prompt_seconds_total",
        "tokens_predicted_total", "tokens_predicted_seconds_total", "n_decode_total",
        "n_tokens_max", "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total", "spec_decode_num_drafts_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
    },
    "gauge": {
        "prompt_tokens_seconds", "predicted_tokens_seconds", "requests_processing",
        "requests_deferred", "n_busy_slots_per_decode",
    },
}  # fmt: skip

LIMITS = """
    accept_s_max accepts_per_round address_bytes_max batch_factor batch_factor_min batch_first_s
    batch_s_max batch_s_min batch_token_s batch_tokens_max block_tokens bodies_bytes_min bodies_max
    bodies_read_max body_bytes_min body_bytes_per_token body_bytes_spared body_s_max
    body_unread_bytes_max caller_id_characters_max choices_max chunk_bytes_usual
    chunk_line_bytes_max chunks_max chunks_per_piece chunks_per_step completions_max connections_max
    constraint_again_s_max constraint_characters_max constraint_compile_bytes_max
    constraint_compile_s_max constraint_extra_s_max constraint_token_s_max constraints_lost_s_max
    containers_max copied_tokens_max deadline_grace_s deadline_ms_max decode_slice depth_max
    door_requests_max door_small_bytes door_threads files_kept give_up_attempts give_up_s
    group_size_min head_bytes_usual header_bytes_max header_bytes_per_step header_commas_max
    header_s_max headers_max headers_wait_s inline_bytes_max inline_values_max keep_alive_s
    kv_tokens linger_s_max log_bytes_max log_end_s_max logit_bias_entries_max logit_bias_max
    logprob_values_max logprobs_max messages_max metadata_entries_max metadata_key_characters_max
    metadata_value_characters_max method_characters_max model_len_max name_characters_max
    object_keys_max overtake_s page_text_characters parts_max pause_s_max paused_max penalty_max
    piece_bytes_max ping_s prefill_chunk prefix_chunk prefix_wait_min prompt_characters_max
    prompts_max queue_requests_max queue_share queue_tokens_max reads_bytes_max regex_characters_max
    repetition_penalty_max repetition_penalty_min request_id_characters_max reset_s_max
    rest_bytes_max retry_after_s_max running_share saved_bytes_max scored_span_max seed_max
    sequences_max slice_characters slice_texts slots stall_s_target steps_per_end steps_per_request
    steps_per_round steps_per_share stop_string_characters_max stop_strings_max stop_tokens_max
    strikes_max strikes_quarantine temperature_max template_bytes_max template_characters_max
    template_compile_s_max template_quick_s template_s_max template_wait_s_max tenant_characters_max
    tokens_listed_max tokens_max tools_max top_k_max trace_events trace_requests trace_s_max
    trace_slice_events trailer_bytes_max unread_bytes_max unread_s_max unsent_bytes_max
    unwritten_bytes_max value_bytes_usual values_max wait_s watermark
"""
"""The labels of `jitney:limit` without a service."""


class MeteredEngine:
    """An engine over the fake backend, with metrics."""

    def __init__(self) -> None:
        self.backend = FakeBackend(
            FakeSettings(slots=8, kv_tokens=400, eos_period=12, tick_s=0.01, token_s=0.001)
        )
        settings = SchedulerSettings(
            model_len_max=200,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            prefill_chunk=16,
            policy=Policy.PRIORITY,
        )
        self.engine = Engine(self.backend, settings)
        self.metrics = Monitor(self.engine, "tiny").metrics

    def values(self) -> dict[str, float]:
        """Every sample by name and labels, as Prometheus' own parser reads them."""
        text = self.metrics.render().decode()
        return {
            _sample_key(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def _sample_key(name: str, labels: dict[str, str]) -> str:
    inside = ",".join(f"{key}={labels[key]}" for key in sorted(labels))
    return f"{name}{{{inside}}}" if inside else name


def vllm(name: str, **labels: str) -> str:
    return _sample_key(f"vllm:{name}", {**LABELS, **labels})


def request(name: str, size: int, n: int = 1) -> Request:
    return Request(
        id=RequestId(name),
        prompt=tuple((size * 7 + place) % 200 for place in range(size)),
        params=SamplingParams(temperature=0.0, max_tokens=20, n=n),
        seed=3,
        priority=Priority(size % 3),
    )


@pytest.fixture
def metered() -> Iterator[MeteredEngine]:
    """Not started; closed when the test is over."""
    one = MeteredEngine()
    yield one
    one.engine.close(drain_s=0)


other_metered = metered


def test_totals_after_a_run_are_what_the_callers_counted(metered: MeteredEngine) -> None:
    """Guards the truth of metrics: preemption, n, chunks and ends of all kinds count once."""
    requests = [request(f"r{at}", 3 + at * 5 % 90, n=1 + at % 3) for at in range(40)]
    handles = [metered.engine.send(each) for each in requests]
    metered.engine.start()
    answers = [handle.result(WAIT_S) for handle in handles]
    values = metered.values()
    sampled = sum(answer.usage.completion_count for answer in answers)
    prompt_tokens = sum(answer.usage.prompt_count for answer in answers)
    cached = sum(answer.usage.cached_count for answer in answers)
    assert values["jitney:completion_tokens_total"] == sampled
    assert values[vllm("generation_tokens_total")] == sampled
    assert values["llamacpp:tokens_predicted_total"] == sampled
    assert values["jitney:prompt_tokens_total"] == prompt_tokens
    assert values[vllm("prompt_tokens_total")] == prompt_tokens
    assert values[vllm("prefix_cache_hits_total")] == cached
    assert values["llamacpp:prompt_tokens_total"] == prompt_tokens - cached
    assert values["llamacpp:prompt_tokens_cached_total"] == cached
    ended = sum(value for key, value in values.items() if "requests_ended_total" in key)
    assert ended == values["jitney:requests_accepted_total"] == len(answers)
    assert values[vllm("time_to_first_token_seconds_count")] == len(answers)
    firsts = sum(len(answer.completions) for answer in answers)
    assert values[vllm("inter_token_latency_seconds_count")] == sampled - firsts
    assert values[vllm("num_preemptions_total")] == metered.engine.stats().preemption_count


def test_displacement_by_class_is_a_preemption_in_every_count(
    metered: MeteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards one count: metrics, `Stats` and those who show it knew of different preemptions."""
    long = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    low = [replace(request(f"r{at}", 3), priority=Priority.LOW, params=long) for at in range(4)]
    urgent = [replace(request(f"u{at}", 3), priority=Priority.HIGH) for at in range(2)]
    handles = [metered.engine.send(each) for each in low]
    execute = metered.backend.execute

    def joined(batch: Batch) -> Outcome:
        # All four run, and have made a token.
        if batch.number == 2:
            handles.extend(map(metered.engine.send, urgent))
        return execute(batch)

    monkeypatch.setattr(metered.backend, "execute", joined)
    metered.engine.start()
    for at in range(6):
        handles[at].result(WAIT_S)
    values, stats = metered.values(), metered.engine.stats()
    assert values["jitney:preemptions_total{reason=displaced}"] == 2
    assert values[vllm("num_preemptions_total")] == stats.preemption_count
    names = ("displaced", "preempted_saved", "preempted_recomputed")
    assert sum(stats.counters[name] for name in names) == stats.preemption_count


def test_figures_of_the_statistics_are_there_and_the_same(metered: MeteredEngine) -> None:
    """Guards the peak of the queue, idle slots, shares of time, batches and T(B) = C + B c."""
    before = metered.values()
    assert before["jitney:time_share{kind=idle}"] == 1.0
    assert "jitney:batch_fixed_seconds" not in before, "nothing was fitted, and 0 would be a lie"
    handles = [metered.engine.send(request(f"r{at}", 3 + at)) for at in range(9)]
    metered.engine.start()
    for handle in handles:
        handle.result(WAIT_S)
    values, stats = metered.values(), metered.engine.stats()
    assert values["jitney:peak_queue_size"] == stats.peak_queue_size >= 5
    assert values["jitney:idle_slots"] == stats.idle_slots == 4
    shares = [values[f"jitney:time_share{{kind={kind}}}"] for kind in (*KINDS, "idle")]
    assert sum(shares) == pytest.approx(1.0)
    in_passes = [values[f"jitney:pass_seconds_total{{kind={kind}}}"] for kind in KINDS]
    assert sum(in_passes) == pytest.approx(values["jitney:forward_seconds_sum"])
    batches, sequences = values["jitney:batches_total"], values["jitney:batch_sequences_total"]
    assert (batches, sequences / batches) == (stats.total_batches, stats.avg_batch_size)
    assert values["jitney:batch_fixed_seconds"] == pytest.approx(0.01)
    assert values["jitney:batch_per_sequence_seconds"] == pytest.approx(0.001)


def test_every_vllm_histogram_has_vllms_bounds(metered: MeteredEngine) -> None:
    """Guards dashboards that compute quantiles from those very buckets."""
    values = metered.values()
    for name, bounds in VLLM_HISTOGRAMS.items():
        keys = [vllm(f"{name}_bucket", le=repr(float(bound))) for bound in bounds]
        found = {key for key in values if key.startswith(f"vllm:{name}_bucket{{")}
        assert found == {*keys, vllm(f"{name}_bucket", le="+Inf")}, name


def test_llama_servers_sixteen_series_are_there(metered: MeteredEngine) -> None:
    """Guards dashboards made for llama-server: its names, each once, and of its types."""
    lines = metered.metrics.render().decode().splitlines()
    types = [line.split()[2:] for line in lines if line.startswith("# TYPE llamacpp:")]
    expected = [[f"llamacpp:{name}", kind] for kind, names in LLAMACPP.items() for name in names]
    assert sorted(types) == sorted(expected)
    for name, _ in types:
        assert any(line.startswith((f"{name} ", f"{name}{{")) for line in lines), name


def test_every_limit_and_every_event_is_visible(metered: MeteredEngine) -> None:
    """Guards invariant 9: a bound that nobody can see is met by surprise."""
    values = metered.values()
    for field in fields(metered.engine.settings):
        value = getattr(metered.engine.settings, field.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            label = LIMIT_LABELS.get(field.name, field.name)
            assert values[f"jitney:limit{{limit={label}}}"] == value
    for module in (core_limits, limits):
        for name, value in vars(module).items():
            if name.isupper():
                label = LIMIT_LABELS.get(name.lower(), name.lower())
                found = values[f"jitney:limit{{limit={label}}}"]
                assert found == (
                    connections_max() if name == "CONNECTIONS_MAX" else float(value)
                ), name
    assert values["jitney:limit{limit=kv_tokens}"] == 400
    assert values["jitney:limit{limit=stop_strings_max}"] == 16
    for name in NAMES:
        assert values[f"jitney:events_total{{event={name}}}"] == 0


def test_the_labels_of_limits_do_not_change_when_a_constant_is_renamed(
    metered: MeteredEngine,
) -> None:
    """Guards dashboards and alerts on a limit: a label that is gone shows nothing at all."""
    found = re.findall(r'^jitney:limit{limit="(\w+)"}', metered.metrics.render().decode(), re.M)
    assert set(found) >= set(LIMITS.split())


def test_a_refused_request_is_counted_by_its_error(metered: MeteredEngine) -> None:
    """Guards against refusals that no dashboard shows."""
    metered.engine.start()
    with pytest.raises(ContextLengthExceeded):
        metered.engine.submit(request("long", 300))
    values = metered.values()
    assert values["jitney:requests_refused_total{error=ContextLengthExceeded}"] == 1
    assert values["jitney:requests_accepted_total"] == 0


def test_answers_over_http_are_counted_by_route_and_status(metered: MeteredEngine) -> None:
    """Guards the error rate that alerts are made of."""
    for status in (200, 200, 503):
        metered.metrics.answered("/v1/models", status)
    metered.metrics.answered("/v1/completions", 429, "QueueFull")
    values = metered.values()
    assert values["jitney:http_refusals_total{error=QueueFull}"] == 1
    assert values["jitney:http_responses_total{route=/v1/models,status=200}"] == 2
    assert values["jitney:http_responses_total{route=/v1/models,status=503}"] == 1


def test_two_servers_in_one_process_do_not_share_numbers(
    metered: MeteredEngine, other_metered: MeteredEngine
) -> None:
    """Guards against a registry that is global."""
    metered.engine.start()
    metered.engine.submit(request("a", 5)).result(WAIT_S)
    assert metered.values()["jitney:requests_accepted_total"] == 1
    assert other_metered.values()["jitney:requests_accepted_total"] == 0


def test_every_figure_has_the_name_of_its_replica() -> None:
    views = (VIEW, replace(VIEW, name="b", completion_tokens=1))
    totals = Statistics(0.0, SNAPSHOT, moved=4, replicas_gone=2)
    tables = {"gauge": replica_levels(views), "counter": replica_sums(views, totals)}
    values = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for kind, table in tables.items()
        for family in families(kind, table)
        for sample in family.samples
    }
    assert values["jitney:replica_up", "a"] == values["jitney:replica_up", "b"] == 1
    assert values["jitney:replica_requests_running", "a"] == 2
    assert values["jitney:replica_requests_waiting", "a"] == 3
    memory = {state: values["jitney:replica_kv_tokens", "a", state] for state in KV_STATES}
    assert memory == {"used": 40, "cached": 20, "free": 40}
    assert values["jitney:replica_prompt_tokens_total", "a"] == 50
    assert values["jitney:replica_prompt_tokens_cached_total", "a"] == 30
    assert values["jitney:replica_completion_tokens_total", "a"] == 70
    assert values["jitney:replica_completion_tokens_total", "b"] == 1
    assert values["jitney:requests_moved_total",] == 4
    assert values["jitney:replicas_gone_total",] == 2


def test_without_replicas_only_the_sums_are_there() -> None:
    """Guards the number of series: names of replicas that are gone are nowhere."""
    table = replica_levels(()) | replica_sums((), Statistics(0.0, SNAPSHOT, moved=4))
    shown = {name for name, (_, values) in table.items() if values != []}
    assert shown == {"requests_moved", "replicas_gone"}
    assert "ends when it is gone" in table["replica_completion_tokens"][0]
