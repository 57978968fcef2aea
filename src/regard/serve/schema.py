"""The parts of the OpenAPI document that describe bodies and responses."""

from dataclasses import asdict, fields
from typing import Any

from regard.recipe import Search
from regard.serve.limits import Bounds
from regard.serve.questions import LEAST_TIMEOUT, SEARCH_KEYS

Schema = dict[str, Any]


def _json(description: str, schema: Schema, kind: str = "application/json") -> Schema:
    return {"description": description, "content": {kind: {"schema": schema}}}


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


ERROR = {"type": "object", "required": ["error"], "properties": {"error": _text("What is wrong, and how to fix it.")}}
REFUSALS = {
    "401": "The token is missing or wrong.",
    "403": "The request comes from a page of another site.",
    "404": "There is no such run.",
    "408": "The body arrived too slowly.",
    "413": "The request is larger than a bound, which the sentence names.",
    "415": "The content type is not one that the run reads.",
    "422": "A value is not allowed; the sentence names what is.",
    "429": "The queue of the run is full; the header Retry-After says when to try again.",
    "503": "The server is loading, stopping or overloaded; the header Retry-After says when to try again.",
    "504": "There was no answer in time, though it was begun early enough.",
}
REFUSED = {status: _json(text, ERROR) for status, text in REFUSALS.items()}


def _number(kind: str, least: float, most: float, description: str = "", **others: object) -> Schema:
    described = {"description": description} if description else {}
    return {"type": kind, "minimum": least, "maximum": most} | others | described


def _search(bounds: Bounds) -> Schema:
    """The keys of a search, with the types and bounds of the recipe, or the server's bounds if they are lower."""
    own = {"max_ratio": bounds.max_ratio, "max_extra": bounds.max_extra}
    keys = {key.name: key for key in fields(Search) if key.name in SEARCH_KEYS}
    return {
        name: _number(
            "integer" if key.type is int else "number",
            key.metadata["least"],
            min(key.metadata["most"], own.get(name, key.metadata["most"])),
        )
        for name, key in keys.items()
    }


def _question(bounds: Bounds) -> Schema:
    """The JSON body of a question."""
    return {
        "type": "object",
        "required": ["inputs"],
        "additionalProperties": False,
        "properties": {
            "run": _text("The name of the run; may be left out if the server has only one."),
            "inputs": {
                "type": "array",
                "minItems": 1,
                "maxItems": bounds.inputs,
                "description": "Texts; of a run that forecasts, series as objects.",
                "items": {"oneOf": [_text("A text."), {"type": "object", "description": "A series, for forecasts."}]},
            },
            "beam": _number("integer", 1, bounds.beam, "Width of the beam; 1 is greedy."),
            "n_best": _number("integer", 1, bounds.beam, "Outputs for each input.", default=1),
            "search": {
                "type": "object",
                "additionalProperties": False,
                "description": "Other keys of the recipe's search section, such as temperature, which samples.",
                "properties": _search(bounds),
            },
            "seed": _number("integer", 0, bounds.seed, "The seed of sampling.", default=0),
            "maps": {"type": "boolean", "default": False, "description": "The attention map of each output."},
            "all_maps": {
                "type": "boolean",
                "default": False,
                "description": "The maps of all sites, layers and heads.",
            },
            "view": {"type": "boolean", "default": False, "description": "The data that the viewer of the page draws."},
            "interventions": {
                "type": "array",
                "maxItems": bounds.interventions,
                "items": {"type": "string"},
                "description": 'Changes of the model for one input, such as "erase 3" or "silence layer=2 head=3".',
            },
            "timeout": _number(
                "number",
                LEAST_TIMEOUT,
                bounds.deadline,
                "Seconds from the start of the request in which the answer must be there.",
            ),
        },
    }


PREDICTION: Schema = {
    "type": "object",
    "required": ["source", "text", "tokens", "score"],
    "properties": {
        "source": _text("The input."),
        "text": _text("The output."),
        "tokens": {"type": "array", "items": {"type": "string"}},
        "score": {"type": "number", "description": "The log-probability, less any penalties of the search."},
        "source_tokens": {"type": "array", "items": {"type": "string"}, "description": "The columns of `attention`."},
        "attention": {
            "type": "array",
            "items": {"type": "array", "items": {"type": "number"}},
            "description": "The map: a row for each token, a column for each source token.",
        },
        "trust": _text("How far the map may be trusted, with maps; or that it was not measured."),
        "alternatives": {"type": "array", "items": {"type": "object"}, "description": "Other outputs, with n_best."},
        "view": {"type": "object", "description": "The data that the viewer of the page draws, with view."},
        "note": _text("Why a view has only the map of the output."),
        "intervened": {"type": "object", "description": "The output before interventions, and the difference."},
        "error": _text("Why the output is empty, for example since the input is too long."),
    },
}
UPLOAD = {"schema": {"type": "string", "format": "binary"}}
ANSWER: Schema = {
    "type": "object",
    "properties": {"run": _text("The name of the run."), "predictions": {"type": "array", "items": PREDICTION}},
}
STREAMED = (
    "Server-sent events: `token` with the token, the text so far and, with maps, its row of attention; at the end "
    "`done` with the whole prediction, or `error`."
)
PREDICTED = {"responses": {"200": _json("The outputs, in the order of the inputs.", ANSWER)} | REFUSED}
EVENTS = {"responses": {"200": _json(STREAMED, {"type": "string"}, "text/event-stream")} | REFUSED}
RUNS = {"responses": {"200": _json("The runs.", {"type": "object"}), "401": REFUSED["401"]}}
HEALTH = {"responses": {"200": _json("It is alive.", {"type": "object"})}}
READY = {"responses": {"200": _json("It is ready.", {"type": "object"}), "503": REFUSED["503"]}}
METRICS = {"responses": {"200": _json("The figures.", {"type": "string"}, "text/plain"), "401": REFUSED["401"]}}


def asking(bounds: Bounds, responses: Schema) -> Schema:
    """The body and the responses of an endpoint that is asked a question, with the bounds of this server."""
    body = {
        "required": True,
        "description": "A JSON object; or the content of one picture, recording or CSV file of series, with the other "
        "keys in the query string.",
        "content": {
            "application/json": {"schema": _question(bounds)},
            "image/*": UPLOAD,
            "audio/*": UPLOAD,
            "text/csv": UPLOAD,
        },
    }
    return {"requestBody": body} | responses


def document(openapi: Schema, bounds: Bounds) -> Schema:
    """The OpenAPI document, with the token as a security scheme and the bounds of this server."""
    described = 'Predictions of trained runs, with their attention maps. Errors are `{"error": sentence}`.'
    schemes = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        **openapi,
        "info": {**openapi["info"], "description": described},
        "components": {"securitySchemes": schemes},
        "security": [{}, {"token": []}],
        "x-bounds": asdict(bounds),
    }
