"""Counters and times of the server in the format of Prometheus."""

from collections.abc import Mapping

from regard.serve.batcher import Lane

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The figures of one server, in a registry of its own."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "regard_requests", "Requests by path and status.", ["path", "status"], registry=registry
        )
        self._seconds = Histogram(
            "regard_request_seconds", "Time from request to response.", ["path"], buckets=SECONDS, registry=registry
        )
        self._batches = Histogram(
            "regard_batch_inputs", "Inputs that were answered in one batch.", ["run"], buckets=SIZES, registry=registry
        )
        self._batch_seconds = Histogram(
            "regard_batch_seconds", "Time of a batch.", ["run"], buckets=SECONDS, registry=registry
        )
        self._dropped = Counter(
            "regard_dropped",
            "Requests whose work was not done, since nobody waited for it.",
            ["run"],
            registry=registry,
        )
        self._depth = Gauge("regard_queue_inputs", "Inputs that wait for a run.", ["run"], registry=registry)
        self._in_flight = Gauge("regard_requests_in_flight", "Requests that are being answered.", registry=registry)

    def request(self, path: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, run: str, inputs: int, seconds: float) -> None:
        """A batch was answered."""
        self._batches.labels(run).observe(inputs)
        self._batch_seconds.labels(run).observe(seconds)

    def dropped(self, run: str, jobs: int) -> None:
        """Jobs were not begun, or their batch was ended, since nobody waited for them."""
        self._dropped.labels(run).inc(jobs)

    def exposition(self, lanes: Mapping[str, Lane], in_flight: int) -> bytes:
        """All figures as text."""
        from prometheus_client import generate_latest

        for name, lane in lanes.items():
            self._depth.labels(name).set(lane.depth)
        self._in_flight.set(in_flight)
        return generate_latest(self.registry)
