"""The reference page of the HTTP interface, made from the tables that the server runs by. Pure."""

from collections.abc import Mapping

from jitney.core.limits import PAUSE_S_MAX, QUEUE_SHARE, RETRY_AFTER_S_MAX, RUNNING_SHARE
from jitney.server import limits
from jitney.server.anthropic.message_body import MessagesBody
from jitney.server.anthropic.message_fields import IGNORED_PARTS as PARTS_OF_MESSAGES
from jitney.server.anthropic.message_fields import UNKNOWN
from jitney.server.batches.batch_routes import BatchBody
from jitney.server.batches.message_batch_routes import MessageBatchBody
from jitney.server.error_object import CODES
from jitney.server.openai.bodies import CompletionBody, SamplingFields, Strict
from jitney.server.openai.chat_body import ChatBody, TokenizeBody
from jitney.server.openai.conversation import INVALID
from jitney.server.openai.refused_fields import IGNORED_PARTS, OF_BOTH, RefusedField
from jitney.server.openai_responses import limits as responses
from jitney.server.openai_responses.response_body import IN_RESPONSES, ResponseBody
from jitney.server.openai_responses.skipped_kinds import (
    SKIPPED_INCLUDES,
    SKIPPED_ITEMS,
    SKIPPED_TOOLS,
)

_HEAD = f"""\
# HTTP interface

`jitney serve` answers the clients of OpenAI's interface. A field is supported; or accepted without
effect, where no answer could differ and clients send it all the same; or ignored; or refused by
name with a sentence that says why. Fields of other names are refused too, with the nearest name
that is known. A field that may be left out may be null as well.

Ignored are fields of other servers that clients send and that could not change an answer. The
header `x-jitney-ignored` names those that a call had, and a line of a batch has them as `ignored`
beside its `status_code`. With `--strict` they are refused. No other field is ever ignored.

This page is made from the source by `make docs`.

## Paths

| path | what it does |
| --- | --- |
| `POST /v1/chat/completions` | answers a conversation |
| `POST /v1/completions` | completes a prompt, or up to {limits.PROMPTS_MAX} of them |
| `POST /v1/responses` | answers a conversation in the form of OpenAI's Responses; stored, unless \
`store` is false ([Responses](#responses)) |
| `GET /v1/responses/ID` | a stored response; with `stream=true` its events, and with \
`starting_after=N` those behind a number, also while it runs |
| `GET /v1/responses/ID/input_items` | what it was asked with (`after`, `limit`, `order`) |
| `POST /v1/responses/ID/cancel`, `DELETE /v1/responses/ID` | ends a background response; forgets \
a stored one |
| `POST /v1/messages` | answers a conversation in Anthropic's form; see \
[Anthropic's interface](#anthropics-interface) |
| `POST /v1/messages/count_tokens` | how many tokens such a conversation has as a prompt |
| `POST /v1/messages/batches` | answers many of them behind live calls, each once \
([batches](../batches.md#anthropics-batches)) |
| `GET /v1/messages/batches`, `GET /v1/messages/batches/ID` | the batches of messages of the \
caller's key, newest first (`limit`, `after_id`, `before_id`); one of them |
| `GET /v1/messages/batches/ID/results` | a line for each request, once it has ended |
| `POST /v1/messages/batches/ID/cancel`, `DELETE /v1/messages/batches/ID` | asks no more of its \
requests; deletes one that has ended, with its files |
| `POST /tokenize` | tokens of a `prompt`, or of `messages` with their `tools` |
| `POST /detokenize` | the text of `tokens` |
| `POST /v1/requests/ID/pause`, `POST /v1/requests/ID/resume` | a call of one's own that is being \
answered, by the `id` of its reply, does nothing until it is resumed; its time limits hold, it \
keeps its place by age, and after {PAUSE_S_MAX:g} s of pauses it goes on by itself; at most a \
quarter as many may be paused as may wait, and of a key a quarter of its share, each completion \
counted; beyond that nothing of the call is paused, with 429 |
| `POST /v1/requests/ID/priority?priority=high` | puts such a call into another class, by name, or \
by a number as in the field `priority`; refused where the policy is neither \
`priority` nor one of your own |
| `POST /v1/files` | stores a file of lines for a batch: a form with `file`, and `purpose` as \
`batch` |
| `GET /v1/files`, `GET /v1/files/ID` | the files of the caller's key (`purpose`, `order`, \
`limit`, `after`); one of them |
| `GET /v1/files/ID/content`, `DELETE /v1/files/ID` | its content; deletes it, unless a batch that \
has not ended reads it |
| `POST /v1/batches` | runs the lines of a file behind live calls ([batches](../batches.md)); with \
`Idempotency-Key`, the same file and key are one batch |
| `GET /v1/batches`, `GET /v1/batches/ID` | the batches of the caller's key, newest first \
(`limit`, `after`); one of them |
| `POST /v1/batches/ID/cancel` | runs no more of its lines; what is done stays |
| `GET /v1/models`, `GET /v1/models/NAME` | what is served, under all its names; with the header \
`anthropic-version` in Anthropic's form |
| `GET /tokenizer_info` | the chat template, and the tokens that begin and end a text |
| `GET /health` | 200 while work gets done; 503 with the reason when the engine stopped, the \
backend is being started again, no replica is connected, or no forward pass ends; needs no key |
| `GET /ready` | 200 while new work is welcome; 503 from the first signal to stop, and whenever \
`/health` is 503; needs no key |
| `GET /load` | `server_load`: requests that are being served |
| `GET /version` | of the software |
| `GET /stats` | counters, averages and levels since the start, as JSON: \
[records.md](records.md#stats) lists them |
| `GET /slots` | who runs in which slot, in llama-server's shape; \
`fail_on_no_slot=1` answers 503 when every slot is taken |
| `GET /metrics` | Prometheus |
| `GET /debug/trace` | the last ticks and requests of the flight recorder, for Perfetto or \
chrome://tracing, and with `whole=true` all that it holds; one at a time for each key |
| `GET /openapi.json` | this interface, for programs |
| `GET /` | the page |

## Slots

`/slots` has as many rows as `max_num_seqs`. A row has `id`, `id_task`, `n_ctx`, `speculative` and
`is_processing`, and under `jitney` its `state` (`idle`, `cached`, `prefilling`, `generating`) and
its `tokens`. Where a request runs there are `n_prompt_tokens`, `n_prompt_tokens_processed`,
`n_prompt_tokens_cache`, `params` (`n_predict`, `max_tokens`) and `next_token` (`has_next_token`,
`n_remain`, `n_decoded`) as well, and under `jitney` its `known` tokens, the prompt and what was
made: all of these are prefilled again after a preemption or a move. `id_task` is the request's id,
null where it is another key's, and -1 where nobody runs. Neither prompts nor texts are told. The
engine is asked every 0.2 s at most; `x-jitney-seen-ms` says how long ago it was, which is long when
it is stuck.

## Keys

With `--api-key-file`, `JITNEY_API_KEY` or `--api-key` (which others on the machine can read in
`ps`), every path but `/health`, `/ready` and the files of the page wants `Authorization: Bearer
KEY`, or without it `x-api-key: KEY`; [config.md](config.md#key-file) shows a file of keys. A key's
name is its tenant under the policy `fair`, and the boundary of prefix reuse unless it was given a
`cache_scope` to share.

Where there are several keys, each may hold a share of the server: {QUEUE_SHARE:.0%} of the
queue, in requests and in tokens, and {RUNNING_SHARE:.0%} of the places to run in, unless
the file says otherwise (`queue_share`, `running_share`). What would take it beyond its share of the
queue is refused with 429, and what finds its places taken waits for one of its own to end while
others pass. A key with nothing waiting may always bring one request. Keys take turns at being
tokenised, too.

Its rates are per minute, and a minute's worth may be used at once. Requests are counted when
they arrive, and a call for several completions counts for each of them: prompts times `n`.
Tokens are set aside when a call is let in: those of its prompts, and the most that it may make,
which is `n` times `max_tokens`, or times the rest of the context where there is none; what was
not used is given back when it ends. A call that may take more than a minute's worth is let in
when nothing of the last minute's is used; one that may take more than
{RETRY_AFTER_S_MAX // 60} minutes' worth is refused with 400. With 429, `retry-after` says
when the call would be let in if nothing else came. Batches have a limit of their own for a day
(`batch_tokens_per_day`), which follows from the rate of tokens; [batches.md](../batches.md#limits)
says how it is counted.

## Pages in browsers

A page of another origin may call where `--cors-origin` names its origin. Without keys, the others
get 403 for everything but GET, HEAD and OPTIONS, before their body is read, whether they asked
before or not; `Sec-Fetch-Site` and `Origin` tell them apart. Programs send neither. With keys, a
right key is enough.

## Headers of answers

| header | meaning |
| --- | --- |
| `x-request-id`, `request-id` | the caller's own, when it has 1 to \
{limits.REQUEST_ID_CHARACTERS_MAX} printable characters, else one of ours |
| `x-jitney-ignored` | fields of the body that were ignored, by the names in the tables below; \
missing if there were none |
| `x-jitney-queue-position` | how many requests waited when this one was accepted |
| `x-jitney-queue-ms` | the wait for the first slot, once it is over |
| `x-jitney-first-token-ms`, `x-jitney-total-ms` | from arrival, where the answer is no stream |
| `retry-after`, `retry-after-ms` | with 429: when there will be room, from the queue and the rate |
| `x-should-retry` | `false` with 408 for a deadline: the caller's own, not to be tried again; and \
with 500 `input_crashed`: the model's process ended while it read the request |

## Streams

Events are `data: ` and a JSON object; the first of a chat has the role, the last of each choice
its `finish_reason`, and `data: [DONE]` ends a stream that went well. The status line waits for the
first token, for {limits.HEADERS_WAIT_S:g} s at most, so that early failures have a status. A
failure after that is one event with an `error`, and no `[DONE]`. A stream that has nothing to say
for {limits.PING_S:g} s says `: ping`. A client that has
left so much of an answer unread, stream or not, that the buffers in between are full, and takes
nothing for {limits.SEND_S_MAX:g} s, is cut.

A client that leaves, streaming or not, waiting or running, frees its place within two ticks.

## Responses

A response is a translation: its items become the messages of a chat, and what the chat answers
becomes items of kind `message`, `function_call` and `reasoning`. Events are numbered from 0 by
`sequence_number`; a stream ends with `response.completed`, `response.incomplete` (also for a
cancelled one, whose `status` says so) or `response.failed`, and then `data: [DONE]`. Read behind a
number, it has the events with greater ones; behind the last of one that has ended, that line alone.

Where there is a folder of jobs (`--jobs-dir`), a response is stored for its key unless `store` is
false, as OpenAI does it: it, its input and its events can be read again for \
{responses.EXPIRY_S // 86_400} days, and
`previous_response_id` goes on behind it. One that has a caller is stored at its end, before its
last event; if that fails, its `store` says false. A key keeps {responses.KEPT_MAX:,} responses \
and \
{responses.KEPT_BYTES_MAX >> 30} GiB; beyond
that the oldest that has ended is forgotten. Without a folder nothing is stored: `store` is ignored
by name, and `background` and `previous_response_id` are refused.

With `background` the call returns at once, with status `queued`, and the answer goes on without a
caller, as a call of its key: {responses.LIVE_MAX:,} of a key may wait and run. An event is on the \
disk before anybody
sees it. So a stream is resumed by `starting_after` with no event twice and none lost, and an answer
that was under way goes on after `kill -9` of the server or the backend, from its stored tokens and
with its seed. It waits while its key or its model is not served; cancel it, if they do not come
back. Another model under the same name is not its model: the name of its file, its tokens and its
chat template tell. Where the context is shorter than its answer by then, it ends as `incomplete`.
It is kept until it has ended, however old it is. A key reads 512 streams of stored responses at
once; what they hold together is bounded, and beyond that they wait for one another.

An input may name an item of a stored answer by its id (`item_reference`); it is read from there and
stored with the input. Items of inputs have no such names. `reasoning_tokens` in the usage is 0 also
where it is not known, for models without a token that ends a thought: clients of OpenAI's expect a
number. In the usage of batches it is always 0.

What is stored belongs to the name of its key. Keys of `--api-key` and `JITNEY_API_KEY` are named by
their place: give names in a file (`--api-key-file`) where they may change places.

## JSON

An object of a schema takes the keys in its `properties` and no others, as though it said
`additionalProperties: false`; give `additionalProperties: true`, or a schema, for more. Open are
also objects without `properties`, those that speak of other keys (`patternProperties`,
`minProperties`, a required key that is not in `properties`), and what several schemas describe at
once, such as the members of an `allOf`. This goes for `response_format`, `structured_outputs` and
tools alike. Between the parts of JSON there is a space, or one new line and up to 20 spaces or
tabs; `x-guidance` in a schema can say otherwise (`whitespace_pattern`).

## Tools

The form of calls follows from the model's chat template (`src/jitney/server/formats`): JSON after
`<tool_call>` (Hermes, Qwen, Granite 4), tags in it (Qwen3-Coder, Qwen3.5, GLM, Seed),
`[TOOL_CALLS]` with a list or with names (Mistral), JSON with `name` and `parameters` (Llama 3),
lists of Python (Llama 4, LFM2), the channels of gpt-oss, and the forms of Gemma 4, FunctionGemma,
DeepSeek to V3.1, Kimi K2, Granite 3 and Nemotron 2. Values that are written as text become JSON by
the tool's schema. A template that does not know tools gets them as text in the system message, in
the first form; calls and answers of tools in the history are written out in the same way. What
looks like a call and is none is content. In Python's form and Gemma's, mistakes behind the first
key are passed on as they are, to the end of the call. A call whose arguments are no JSON object may
come back: the template gets their text as `invalid_json`.

`tool_choice` `required`, or a function by name, is enforced: arguments always match the schema.
Under `auto` the model decides, and what it writes is passed on as it is, `strict` or not; yet a
schema that could not be enforced is refused there too. A call that is enforced is written as JSON,
whatever form the model would have chosen.

## Reasoning

Where the chat template names marks of reasoning (`<think>`, `[THINK]`, the channels of gpt-oss and
Gemma 4), what stands between them is `reasoning_content` of the message, and of deltas of a stream;
the marks and the space around them are in neither field. `reasoning`, vLLM's other name, is not
sent, so that no text is sent twice; a message of the assistant may come back with either name, and
the template gets it. `usage.completion_tokens_details.reasoning_tokens` counts its tokens, with the
mark that ends it, where that mark is one token.

A constraint (`response_format`, `structured_outputs`, an enforced `tool_choice`) holds after the
reasoning: a model thinks freely, and then obeys. With `enable_thinking: false` it holds from the
first token. `thinking_token_budget` ends the reasoning after so many tokens.

## Anthropic's interface

`/v1/messages` is the chat above in another form: its clients, Claude Code among them, need only the
address (`ANTHROPIC_BASE_URL`) and a key. Messages that follow one another in one role are one. Any
`anthropic-beta` is accepted; with it, fields that nobody knows are ignored wherever they stand, and
the header `x-jitney-ignored` has `{UNKNOWN}`. A result of a tool that `is_error` begins with
`Error: `. An input of a tool that is no JSON object is `{{"{INVALID}": "what the model wrote"}}`,
also where it was cut off; in a stream, one that begins as an object is passed on as it comes.

Events are named as Anthropic names them; a silent stream says `ping`. The usage at the beginning of
a stream has the whole prompt as `input_tokens`; the one at its end tells what came from the cache
(`cache_read_input_tokens`), and so does that of a whole reply. `cache_creation_input_tokens` is 0:
what is kept costs nothing. `stop_reason` is `end_turn`, `stop_sequence`, `tool_use`, `max_tokens`,
or `model_context_window_exceeded` where the context was full before `max_tokens`.

Errors are `{{"type": "error", "error": {{"type", "message"}}, "request_id"}}`, in a stream as the
event `error`. Their status is that of the table below, but for 503, which is 529
(`overloaded_error`), and for a deadline, which is 504 (`timeout_error`). A prompt that does not fit
begins with `prompt is too long: `. What is no HTTP is refused in OpenAI's form.
"""


def api_reference() -> str:
    """The whole page, in Markdown."""
    return "\n".join(
        (
            _HEAD,
            _table("Fields of all", _rows(SamplingFields)),
            _table("Fields of /v1/chat/completions", _rows(ChatBody, SamplingFields)),
            _table("Fields of /v1/completions", _rows(CompletionBody, SamplingFields)),
            _table("Fields of /v1/responses", _rows(ResponseBody, SamplingFields)),
            _table("Fields inside those of /v1/responses that are ignored", _inside()),
            _table("Names of other servers and of clients, on all", _refusals(OF_BOTH)),
            _table("Fields of messages and tools that are ignored", _refusals(IGNORED_PARTS)),
            _table("Fields of /v1/messages", _rows(MessagesBody)),
            _table("Fields inside others that /v1/messages ignores", _refusals(PARTS_OF_MESSAGES)),
            _table("Fields of /tokenize", _rows(TokenizeBody)),
            _table("Fields of /v1/batches", _rows(BatchBody)),
            _table("Fields of /v1/messages/batches", _rows(MessageBatchBody)),
            _errors(),
        )
    )


def _table(title: str, rows: list[str]) -> str:
    head = ("| field | | meaning or reason |", "| --- | --- | --- |")
    return "\n".join((f"## {title}", "", *head, *rows, ""))


def _rows(kind: type[Strict], base: type[Strict] = Strict) -> list[str]:
    """The fields of a body, without those of its base and those that both endpoints refuse."""
    rows = []
    for name, field in kind.model_fields.items():
        if name not in base.model_fields:
            status = "accepted, without effect" if name in kind.without_effect else "supported"
            rows.append(f"| `{name}` | {status} | {field.description} |")
    own = {name: each for name, each in kind.refused.items() if name not in OF_BOTH}
    return rows + _refusals(own)


def _refusals(refused: Mapping[str, RefusedField]) -> list[str]:
    rows = []
    for name, field in refused.items():
        reason = field.reason[0].upper() + field.reason[1:] + "."
        if field.allows:
            values = ", ".join(f"`{_json(value)}`" for value in field.allows)
            reason += f" Passes as {values}."
        word = "ignored" if field.is_harmless else "refused"
        rows.append(f"| `{name}` | {word} | {reason} |")
    return rows


def _inside() -> list[str]:
    """What is ignored inside other fields, and kinds that are left out."""
    kinds = {"tools": SKIPPED_TOOLS, "input": SKIPPED_ITEMS, "include": SKIPPED_INCLUDES}
    rows = [
        f"| `{name}.KIND` | ignored | Has no meaning here: {', '.join(sorted(kinds[name]))}. |"
        for name in kinds
    ]
    return rows + _refusals(IN_RESPONSES)


def _json(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).replace("'", '"')


def _errors() -> str:
    codes = sorted((status, kind, code) for code, (status, kind) in CODES.items())
    rows = [f"| {status} | `{kind}` | `{code}` |" for status, kind, code in codes]
    return "\n".join(
        (
            "## Errors",
            "",
            'Always `{"error": {"message", "type", "param", "code"}}`. Bad input is never 5xx.',
            "",
            "| status | type | code |",
            "| --- | --- | --- |",
            *rows,
            "",
        )
    )
