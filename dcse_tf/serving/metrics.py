"""Metrics for Prometheus, summed over the server's processes."""

import os

import prometheus_client
from prometheus_client import multiprocess

# The folder in which several processes store their counts; prometheus_client reads the variable on
# import.
VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

REQUESTS = prometheus_client.Counter(
    "dcse_requests", "Requests; status 499: the client went away.", ["route", "status"]
)
SECONDS = prometheus_client.Histogram(
    "dcse_request_seconds",
    "From the request's headers to the last byte of the answer.",
    ["route"],
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
TEXTS = prometheus_client.Counter("dcse_texts", "Texts embedded, or candidates scored.", ["kind"])
TOKENS = prometheus_client.Counter(
    "dcse_tokens", "Tokens of these texts; estimated for candidates.", ["kind"]
)
TRUNCATED = prometheus_client.Counter(
    "dcse_truncated_texts", "Texts embedded without what is beyond the longest length.", ["kind"]
)
BATCH_TEXTS = prometheus_client.Histogram(
    "dcse_batch_texts",
    "Texts that were computed together.",
    ["kind"],
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
)
WAITING = prometheus_client.Gauge(
    "dcse_waiting_texts", "Texts that are waiting for the model.", multiprocess_mode="livesum"
)


def render() -> bytes:
    """All metrics of all processes, in Prometheus' text format."""
    if VARIABLE not in os.environ:
        return prometheus_client.generate_latest()
    registry = prometheus_client.CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    return prometheus_client.generate_latest(registry)
