"""Keeps the engine's records and shows them as metrics, spans, traces and sentences.

`recorder` turns records into one `story` per request, the last ticks and `histograms`. `metrics`
(named in `metric_table`), `explain`, `otel` and `chrome_trace` only read those, and the engine's
totals. The routes are in `page`.
"""
