"""Compares viewers of attention on one model: time to a page with all maps, its size, and whether it works offline.

    python benchmarks/viewers.py RUN TEXT --bertviz PYTHON --inseq PYTHON [--regard PYTHON] [--rounds 5] [--out FOLDER]

RUN is a Transformer that `regard export --to huggingface` takes. The export is looked at by `regard.record`, BertViz
and Inseq, each with the Python of an environment of its own (`pip install regard[hf]`, `bertviz`, `inseq`), and the run
itself by `regard look`. All write the greedy output of TEXT and a page with its maps. Cold: from the start of a process
to the last change of the file, in turns. Warm: from the text to the file in a process that has written it before. Then
chromium opens every page without a network, and takes a picture of it.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONGEST = 60  # tokens of an output
WARM = 5  # pages that a warm process writes
# Offline, on one thread, and with the bytecode of regard kept, as pip keeps that of an installed package.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
Write = Callable[[], str]  # writes the page, and returns the output of the model


# ---- contenders: each imports and loads what it needs, and returns what writes its page


def look(options: argparse.Namespace) -> Write:
    """The run itself, as `regard look RUN TEXT --all --beam 1 -o PAGE` does."""
    import regard

    predictor = regard.load(options.run, device="cpu")

    def write() -> str:
        prediction = predictor.predict([options.text], beam=1, all_maps=True)[0]
        assert prediction.maps is not None
        prediction.maps.save(options.page, prediction.title)
        return str(prediction.text)

    return write


def record(options: argparse.Namespace) -> Write:
    """`regard.record` on the exported model; the fused attention of transformers stays on."""
    import torch

    import regard

    model, tokenizer = _load(options.model)

    def write() -> str:
        inputs, written = _translate(model, tokenizer, options.text)
        with torch.no_grad(), regard.record(model) as recording:
            model(**inputs, decoder_input_ids=written[:, :-1])
        source, target = (tokenizer.convert_ids_to_tokens(row) for row in (inputs["input_ids"][0], written[0]))
        labels = {
            "encoder.self_attention": (source, source),
            "decoder.cross_attention": (target[1:], source),
            "decoder.self_attention": (target[1:], target[:-1]),
        }
        recording.maps(labels=labels).save(options.page, options.text)
        return str(tokenizer.decode(written[0], skip_special_tokens=True))

    return write


def bertviz(options: argparse.Namespace) -> Write:
    """BertViz: `model_view`, all layers and heads as small pictures, or `head_view`, lines of one layer."""
    import bertviz as views
    import torch

    view = getattr(views, options.view)
    model, tokenizer = _load(options.model, attn_implementation="eager")

    def write() -> str:
        inputs, written = _translate(model, tokenizer, options.text)
        with torch.no_grad():
            outputs = model(**inputs, decoder_input_ids=written[:, :-1], output_attentions=True)
        page = view(
            encoder_attention=outputs.encoder_attentions,
            decoder_attention=outputs.decoder_attentions,
            cross_attention=outputs.cross_attentions,
            encoder_tokens=tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]),
            decoder_tokens=tokenizer.convert_ids_to_tokens(written[0, :-1]),
            html_action="return",
        )
        options.page.write_text(page.data, encoding="utf-8")
        return str(tokenizer.decode(written[0], skip_special_tokens=True))

    return write


def inseq(options: argparse.Namespace) -> Write:
    """Inseq with attention as the attribution method."""
    import inseq as toolkit

    model = toolkit.load_model(str(options.model), "attention")

    def write() -> str:
        settings = {"num_beams": 1, "max_new_tokens": LONGEST, "max_length": None}
        out = model.attribute(options.text, generation_args=settings, show_progress=False, pretty_progress=False)
        options.page.write_text(out.show(display=False, return_html=True), encoding="utf-8")
        return str(out.info["generated_texts"][0])

    return write


def _load(folder: Path, **settings: str) -> tuple[Any, Any]:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model = AutoModelForSeq2SeqLM.from_pretrained(folder, **settings).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def _translate(model: Any, tokenizer: Any, text: str) -> tuple[Any, Any]:
    """The inputs of a text, and the ids of its greedy output."""
    inputs = tokenizer([text], return_tensors="pt")
    return inputs, model.generate(**inputs, num_beams=1, max_new_tokens=LONGEST, max_length=None)


CONTENDERS: dict[str, Callable[[argparse.Namespace], Write]] = {
    "regard look": look,
    "regard.record": record,
    "BertViz model_view": bertviz,
    "BertViz head_view": bertviz,
    "Inseq": inseq,
}


def contend(options: argparse.Namespace) -> None:
    """One contender in this process: write its page, several times if warm, and print the output and the seconds."""
    options.view = options.contender.split()[-1]
    write, seconds = CONTENDERS[options.contender](options), []
    for _ in range(1 + options.warm):
        start = time.perf_counter()
        output = write()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"output": output, "seconds": seconds[1:]}))


# ---- the comparison


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Export the run, let the contenders write their pages in turns, and print a table."""
    model = folder / "model"
    subprocess.run(
        [sys.executable, "-m", "regard", "export", options.run, "--to", "huggingface", "-o", model], check=True
    )
    pythons = dict.fromkeys(CONTENDERS, sys.executable)
    pythons |= {"BertViz model_view": options.bertviz, "BertViz head_view": options.bertviz, "Inseq": options.inseq}
    pythons |= {"regard look": options.regard, "regard.record": options.regard}
    commands, pages = {}, {}
    for name, python in pythons.items():
        pages[name] = folder / f"{name.replace(' ', '-')}.html"
        commands[name] = [python, __file__, options.run, options.text, "--contender", name]
        commands[name] += ["--model", str(model), "--page", str(pages[name])]
    own = [options.regard, "-m", "regard", "look", options.run, options.text, "--all", "--beam", "1"]
    cold = commands | {"regard look": [*own, "-o", str(pages["regard look"])]}
    for name, python in pythons.items():
        print(name, versions(python))
    seconds: dict[str, list[float]] = {name: [] for name in pythons}
    work: dict[str, list[float]] = {name: [] for name in pythons}
    for number in range(options.rounds + 1):  # the first reads files from the disk, and is not counted
        for name, command in cold.items():
            taken, busy = run_cold(command, pages[name])
            if number:
                seconds[name].append(taken)
                work[name].append(busy)
    for name, command in commands.items():
        lines = subprocess.run(
            [*command, "--warm", str(WARM)], env=ENVIRONMENT, capture_output=True, text=True, check=True
        ).stdout
        warm = json.loads(lines.splitlines()[-1])
        print(
            f"{name}: cold {spread(seconds[name])} (processor {statistics.median(work[name]):.2f} s), "
            f"warm {spread(warm['seconds'])}, {pages[name].stat().st_size / 1000:,.0f} kB; output: {warm['output']}"
        )
    look_offline(pages, folder)


def run_cold(command: list[str], page: Path) -> tuple[float, float]:
    """Seconds from the start of a process to the last change of its page, and processor seconds of the process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return page.stat().st_mtime - start, busy


def spread(seconds: list[float]) -> str:
    """The median with the smallest and the largest value."""
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def versions(python: str) -> str:
    """The versions of the packages of an environment that matter here."""
    names = ("torch", "transformers", "bertviz", "inseq")
    code = "import sys, importlib.metadata as m; print({d.name: d.version for d in m.distributions()})"
    found = json.loads(subprocess.check_output([python, "-c", code], text=True).replace("'", '"'))
    return ", ".join(f"{name} {found[name]}" for name in names if name in found)


def look_offline(pages: dict[str, Path], folder: Path) -> None:
    """Open each page in chromium without a network, print what it asks of other hosts, and take a picture."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for name, path in pages.items():
            context = browser.new_context(viewport={"width": 1000, "height": 800}, offline=True)
            page, asked, errors = context.new_page(), set[str](), list[str]()
            page.on("request", lambda request, asked=asked: asked.add(request.url))
            page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
            page.goto(path.as_uri())
            page.wait_for_timeout(2000)
            foreign = sorted(url for url in asked if url.startswith("http"))
            page.screenshot(path=folder / f"{path.stem}.png")
            print(f"{name}, offline: asks for {foreign or 'nothing'}, errors of scripts: {errors or 'none'}")
            context.close()
        browser.close()


def main() -> None:
    """Compare, or contend in a process that the comparison started."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("text")
    parser.add_argument("--regard", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--bertviz", metavar="PYTHON")
    parser.add_argument("--inseq", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a new folder for the pages and their pictures")
    for own, kind in (("--contender", str), ("--model", Path), ("--page", Path)):
        parser.add_argument(own, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--warm", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        contend(options)
        return
    if not shutil.which("chromium"):
        parser.error("chromium, which opens the pages, is not installed")
    if options.out:
        options.out.mkdir()
        compare(options, options.out.resolve())
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(options, Path(folder))


if __name__ == "__main__":
    main()
