"""The endpoints: runs, predictions, streams, health, metrics and the page."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from regard import __version__
from regard.errors import DataError, MissingExtraError, RecipeError, RegardError, ResourceError
from regard.models import sites
from regard.predict import Predictor
from regard.serve import pages, schema
from regard.serve.address import Address
from regard.serve.answers import answer_of, check_cells, to_json
from regard.serve.batcher import READY, Answer, Job, Lane, Token
from regard.serve.bodies import Bodies
from regard.serve.guard import Guard
from regard.serve.inputs import UPLOADS, accept_upload, descriptions_of
from regard.serve.limits import Bounds, RefusedError, parse_json
from regard.serve.metrics import Metrics
from regard.serve.questions import (
    Options,
    Question,
    accept_values,
    name_of_run,
    options_of,
    options_of_query,
    question_of,
    values_of,
)
from regard.serve.weights import heads_of

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

GONE = 499  # the status of a request whose client has gone, which only metrics see
DECODERS = 2  # uploads that are decoded at the same time
TEXT = "text/plain; version=0.0.4; charset=utf-8"  # the content type of Prometheus
EVENTS = "text/event-stream"
Result = TypeVar("Result")
Fit = Callable[[Predictor, int, Options], Options]  # of a run, its number of inputs, and the options for them


def _unchanged(predictor: Predictor, inputs: int, options: Options) -> Options:
    return options


class Asked(NamedTuple):
    """A question, the lane of its run, and when the answer must be there."""

    lane: Lane
    question: Question
    deadline: float  # of time.monotonic; counted from the start of the request

    @property
    def left(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self.deadline - time.monotonic())


class Service:
    """Answers requests with the lanes of several runs."""

    def __init__(self, lanes: Mapping[str, Lane], bounds: Bounds, metrics: Metrics) -> None:
        self.lanes, self.bounds, self.metrics = lanes, bounds, metrics
        self.bodies = Bodies(bounds)
        self.pool = ThreadPoolExecutor(DECODERS, thread_name_prefix="decoding")

    @property
    def is_ready(self) -> bool:
        """Whether all runs are loaded."""
        return all(lane.state == READY for lane in self.lanes.values())

    async def ask(self, request: "Request", fitted: Fit = _unchanged) -> Asked:
        """The question of a request: a JSON body, or the content of a file with the options in the query string.

        `fitted` may change the options or refuse them, before the question is measured. The time of the request begins
        here, so that its body and its decoding count.
        """
        began = time.monotonic()
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            async with self.bodies.reading(request, self.bounds.json_bytes, "the JSON body") as content:
                given = parse_json(content, self.bounds)
            return await self._question(given, fitted, began)
        if not kind.startswith(tuple(start for starts in UPLOADS.values() for start in starts)) and (
            kind != "application/octet-stream"
        ):
            types = "application/json, image/*, audio/* or text/csv"
            raise RefusedError(415, f"the content type is {kind[:100]!r}; send {types}")
        parameters = dict(request.query_params)
        options = options_of_query(parameters, self.bounds)
        lane = self.lanes[name_of_run(parameters, [*self.lanes])]
        predictor = lane.predictor

        def question() -> Question:
            inputs = accept_upload(predictor.task, content, kind, self.bounds)
            return question_of(predictor, inputs, fitted(predictor, len(inputs), options), self.bounds)

        async with self.bodies.reading(request, self.bounds.upload_bytes, "the upload") as content:
            return await self._decoded(lane, question, began, options.timeout)

    async def _question(self, given: Mapping[str, Any], fitted: Fit, began: float) -> Asked:
        """The question of a JSON body."""
        options = options_of(given, self.bounds)
        lane = self.lanes[name_of_run(given, [*self.lanes])]
        predictor, values = lane.predictor, values_of(given, self.bounds)

        def question() -> Question:
            inputs = accept_values(predictor, values, self.bounds)
            return question_of(predictor, inputs, fitted(predictor, len(inputs), options), self.bounds)

        if predictor.task.noun_of_input in UPLOADS:  # it is generated from a description, which takes a while
            return await self._decoded(lane, question, began, options.timeout)
        return Asked(lane, question(), began + options.timeout)

    async def _decoded(self, lane: Lane, question: Callable[[], Question], began: float, timeout: float) -> Asked:
        """The question that a thread decodes; RefusedError if it is not there within the time of the request."""
        started = threading.Event()

        def decode() -> Question:
            started.set()
            return question()

        left = began + timeout - time.monotonic()
        try:
            decoded = await asyncio.wait_for(self._in_thread(decode), max(0.0, left))
        except TimeoutError as error:
            if started.is_set() or left <= 0:
                raise _over(timeout) from error
            waited = f"the input was not decoded within {timeout:g} seconds, since others were"
            raise RefusedError(503, f"the server is overloaded: {waited}; try again later", 1) from error
        return Asked(lane, decoded, began + timeout)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def predict(self, request: "Request") -> bytes:
        """The body of the response to POST /v1/predict."""
        asked = await self.ask(request)
        lane, question, _ = asked
        job = self._submit(asked)
        gone: asyncio.Future[Any] = asyncio.create_task(_disconnected(request))
        answers: asyncio.Future[Any] = asyncio.wrap_future(job.future)
        try:
            await asyncio.wait({answers, gone}, timeout=asked.left, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not answers.done():
                raise RefusedError(GONE, "the client has gone")
            if not answers.done():
                raise _late(lane, job)
            predictions = answers.result()
        finally:
            job.abandon()
            gone.cancel()
            answers.cancel()
        return await self._body(lane, question, predictions)

    async def _body(self, lane: Lane, question: Question, answers: Sequence[Answer]) -> bytes:
        """The JSON of predictions; maps are many numbers, so they are written in a thread."""
        options = question.options
        check_cells(answers, options, self.bounds)

        def write() -> bytes:
            predictions = [answer_of(answer, question, lane.name) for answer in answers]
            return to_json({"run": lane.name, "predictions": predictions})

        has_maps = options.maps or options.all_maps or options.view
        return await self._in_thread(write) if has_maps else write()

    def _submit(self, asked: Asked, tell: Callable[[Token], None] | None = None) -> Job:
        """Put a question into the queue of its lane; RefusedError if its time is over already."""
        if not asked.left:
            raise _over(asked.question.options.timeout)
        job = Job(asked.question, asked.deadline, tell)
        asked.lane.submit(job)
        return job

    async def stream(self, request: "Request") -> AsyncIterator[bytes]:
        """The events of POST /v1/stream; the request is checked and in the queue when this returns."""
        asked = await self.ask(request, streamed)
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Token | None]()

        def tell(token: Token | None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(events.put_nowait, token)

        job = self._submit(asked, tell)
        job.future.add_done_callback(lambda _: tell(None))
        return self._events(asked, job, events)

    async def _events(self, asked: Asked, job: Job, events: "asyncio.Queue[Token | None]") -> AsyncIterator[bytes]:
        """An event for each token, and one for the whole prediction, or for an error."""
        lane, question, _ = asked
        try:
            async with asyncio.timeout(asked.left):
                while (token := await events.get()) is not None:
                    content = asdict(token)
                    if not question.options.maps:
                        del content["attention"]
                    yield _event("token", to_json(content))
            yield _event("done", await self._body(lane, question, job.future.result()))
        except TimeoutError:
            yield _event("error", to_json({"error": str(_late(lane, job))}))
        except RegardError as error:
            yield _event("error", to_json({"error": str(error)}))
        finally:
            job.abandon()

    def describe(self) -> dict[str, Any]:
        """The runs, for GET /v1/runs."""
        return {"version": __version__, "runs": [describe(lane) for lane in self.lanes.values()]}


def streamed(predictor: Predictor, inputs: int, options: Options) -> Options:
    """The options with a beam of 1, unless outputs are sampled; RefusedError if tokens cannot be streamed."""
    if predictor.task.output_tokens is None:
        task = predictor.task.recipe.task
        raise RefusedError(422, f"the task {task} does not write token by token; use /v1/predict")
    if inputs != 1:
        raise RefusedError(422, f"a stream has one input, not {inputs}; use /v1/predict for several")
    if options.interventions:
        raise RefusedError(422, "a stream has no interventions; use /v1/predict")
    if options.n_best > 1 or options.changes.get("beam", 1) > 1:
        raise RefusedError(422, "a stream has one output and a beam of 1; a beam decides on its tokens only at its end")
    if predictor.search_settings(options.changes, None).temperature:
        return options
    return replace(options, changes={**options.changes, "beam": 1})


def describe(lane: Lane) -> dict[str, Any]:
    """What a client needs to know of a run."""
    if lane.state != READY:
        return {"name": lane.name, "state": lane.state}
    predictor = lane.predictor
    task = predictor.task
    return {
        "name": lane.name,
        "state": lane.state,
        "task": task.recipe.task,
        "input": task.noun_of_input,
        "uploads": list(UPLOADS.get(task.noun_of_input, ())),
        "streams": task.output_tokens is not None,
        "attention": _sites(predictor),
        "trust": predictor.sentences.shown,
        "search": {key: value for key, value in asdict(task.recipe.search).items() if task.uses(f"search.{key}")},
        "examples": [*descriptions_of(task).values()],
    }


def _sites(predictor: Predictor) -> list[dict[str, Any]]:
    """The attentions of a model: their site, how many layers it has, and how many heads each."""
    found: dict[str, dict[str, Any]] = {}
    for name, site in sites(predictor.model).items():
        entry = found.setdefault(site.name, {"site": site.name, "layers": 0, "heads": heads_of(predictor, name)})
        entry["layers"] = max(entry["layers"], site.layer)
    return [*found.values()]


def _late(lane: Lane, job: Job) -> RefusedError:
    """The refusal of a job whose time is over: the server is overloaded if it waited for half of it or longer."""
    timeout = job.question.options.timeout
    if job.waited >= timeout / 2:
        waited = f"the request waited for {job.waited:.1f} of its {timeout:g} seconds"
        return RefusedError(503, f"the server is overloaded: {waited}; try again later", lane.retry_after())
    return RefusedError(504, f"there was no answer within {timeout:g} seconds; ask for less at a time")


def _over(timeout: float) -> RefusedError:
    """The refusal of a request whose time is over before it is in the queue."""
    taken = f"the request took all of its {timeout:g} seconds to arrive and to be decoded"
    return RefusedError(504, f"{taken}; send less at a time")


def _event(name: str, content: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + content + b"\n\n"


async def _disconnected(request: "Request") -> None:
    """Wait until the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def status_of(error: RegardError) -> tuple[int, int | None]:
    """The status of the response to an error, and the seconds of Retry-After."""
    if isinstance(error, RefusedError):
        return error.status, error.retry_after
    if isinstance(error, RecipeError | DataError | MissingExtraError):
        return 422, None
    return (503, 5) if isinstance(error, ResourceError) else (500, None)


def build(service: Service, address: Address) -> Guard:
    """The application: all endpoints, behind the guard."""
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import StreamingResponse

    app = FastAPI(title="regard", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)

    def as_json(content: Any, status: int = 200) -> Response:
        return Response(to_json(content), status, media_type="application/json")

    @app.post("/v1/predict", summary="Predict outputs", openapi_extra=schema.asking(service.bounds, schema.PREDICTED))
    async def predict(request: Request) -> Response:
        return Response(await service.predict(request), media_type="application/json")

    @app.post(
        "/v1/stream",
        summary="Predict one output, token by token",
        openapi_extra=schema.asking(service.bounds, schema.EVENTS),
    )
    async def stream(request: Request) -> StreamingResponse:
        return StreamingResponse(await service.stream(request), media_type=EVENTS)

    @app.get("/v1/runs", summary="The runs and what they read", openapi_extra=schema.RUNS)
    async def runs() -> Response:
        return as_json(service.describe())

    @app.get("/health", summary="Whether the server is alive", openapi_extra=schema.HEALTH)
    async def health() -> Response:
        return as_json({"status": "ok"})

    @app.get(
        "/ready", summary="Whether all runs are loaded, and the server is not stopping", openapi_extra=schema.READY
    )
    async def ready() -> Response:
        if guard.draining:
            raise RefusedError(503, "the server is stopping", 5)
        if not service.is_ready:
            raise RefusedError(503, "runs are being loaded", 1)
        return as_json({"status": "ready"})

    @app.get("/metrics", summary="Figures in the format of Prometheus", openapi_extra=schema.METRICS)
    async def metrics() -> Response:
        return Response(service.metrics.exposition(service.lanes, guard.in_flight), media_type=TEXT)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return as_json(schema.document(app.openapi(), service.bounds))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(pages.docs(schema.document(app.openapi(), service.bounds)), media_type="text/html")

    for path, asset in pages.ASSETS.items():
        _serve_asset(app, path, asset)
    _explain_errors(app)
    paths = {"/v1/predict", "/v1/stream", "/v1/runs", "/health", "/ready", "/metrics", "/openapi.json", "/docs"}
    paths |= set(pages.ASSETS)
    guard = Guard(app, service.metrics, service.bounds, token=address.token, hosts=address.hosts, paths=paths)
    return guard


def _serve_asset(app: "FastAPI", path: str, asset: "pages.Asset") -> None:
    """Add the endpoint of a file of the page."""
    from fastapi import Response

    async def serve() -> Response:
        return Response(pages.read(asset), media_type=asset.kind)

    app.get(path, include_in_schema=False)(serve)


def _explain_errors(app: "FastAPI") -> None:
    """Answer every error with a sentence, as JSON."""
    from fastapi import Request
    from fastapi.responses import Response
    from starlette.exceptions import HTTPException

    def as_error(sentence: str, status: int, retry_after: int | None = None) -> Response:
        headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        return Response(to_json({"error": sentence}), status, headers, media_type="application/json")

    async def regard_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RegardError)
        return as_error(str(error), *status_of(error))

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        sentences = {
            404: "there is no such endpoint; /docs has all",
            405: "this endpoint takes another method; see /docs",
        }
        return as_error(sentences.get(error.status_code, str(error.detail)), error.status_code)

    async def unexpected(request: Request, error: Exception) -> Response:
        return as_error("the server met an unexpected error; its log has the details", 500)

    app.add_exception_handler(RegardError, regard_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, unexpected)
