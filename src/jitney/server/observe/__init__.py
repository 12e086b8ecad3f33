"""What is kept of the engine's records, and what is made of it; no routes, which are in `page`.

`recorder` folds records into one `story` per request, the last ticks and `histograms`. `metrics`
(with `aliases`), `explain`, `otel` and `chrome_trace` only read those, and the engine's totals.
"""
