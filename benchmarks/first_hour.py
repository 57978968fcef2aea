"""Seconds of every step of a first hour with regard, on an idle machine and beside a busy process.

    python benchmarks/first_hour.py [--rounds 3] [--folder FOLDER]

Runs the commands of the README one after another in a folder of its own, each in a process of its own, as people do:
`dates` is trained, looked at, scored, prolonged and compared. Every round runs all of them twice, alone and beside a
process that computes without end. Prints a table of medians with their spread. Needs an otherwise idle machine.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REGARD = f"{sys.executable} -m regard"
PIPE = "yes '14 juillet 1989' | head -100000 | {regard} predict runs/dates - | head -3"
STEPS = {
    "regard --help": "{regard} --help",
    "regard list": "{regard} list",
    "show a recipe": "{regard} show dates",
    "dry run": "{regard} train dates --dry-run",
    "train dates": "{regard} train dates",
    "look, in the terminal": "{regard} look runs/dates '14 juillet 1989'",
    "look, as a page, PNG and SVG": "{regard} look runs/dates '14 juillet 1989' -o map.html -o map.png -o map.svg",
    "predict one text": "{regard} predict runs/dates --text '14 juillet 1989'",
    "first 3 of 100,000 lines of a pipe": PIPE,
    "300 lines, 3 best, as JSON": "{regard} predict runs/dates dates.txt --json --n-best 3 --beam 3 > best.jsonl",
    "score, with errors": "{regard} score runs/dates --errors errors.tsv",
    "prolong by 40 updates": "{regard} train --resume runs/dates train.updates=460",
    "train 100 updates on 500 own pairs": "{regard} train dates data.train=pairs.tsv train.updates=100 name=mine",
    "force 300 pairs": "{regard} force runs/dates pairs300.tsv",
    "compare two runs on 500 pairs": "{regard} compare runs/dates runs/mine --data pairs.tsv",
    "doctor": "{regard} doctor runs/dates",
}
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def write_files(folder: Path) -> None:
    """Write the texts and pairs that the steps read."""
    numbers = random.Random(1)
    days = [(numbers.randint(1950, 2030), numbers.randint(1, 12), numbers.randint(1, 28)) for _ in range(500)]
    pairs = [f"{day} {MONTHS[month - 1]} {year}\t{year}-{month:02}-{day:02}\n" for year, month, day in days]
    (folder / "pairs.tsv").write_text("".join(pairs), encoding="utf-8")
    (folder / "pairs300.tsv").write_text("".join(pairs[:300]), encoding="utf-8")
    (folder / "dates.txt").write_text("".join(pair.split("\t")[0] + "\n" for pair in pairs[:300]), encoding="utf-8")


def walk(folder: Path) -> dict[str, float]:
    """The seconds of every step, in a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_files(folder)
    seconds = {}
    for name, command in STEPS.items():
        start = time.perf_counter()
        done = subprocess.run(
            command.format(regard=REGARD), shell=True, cwd=folder, capture_output=True, text=True, check=False
        )
        seconds[name] = time.perf_counter() - start
        if done.returncode:
            raise SystemExit(f"{name} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    print(f"300 lines as JSON: {os.path.getsize(folder / 'best.jsonl'):,} bytes", file=sys.stderr, flush=True)
    return seconds


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "first_hour")
    given = arguments.parse_args()
    idle: list[dict[str, float]] = []
    busy: list[dict[str, float]] = []
    for _ in range(given.rounds):
        idle.append(walk(given.folder))
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            busy.append(walk(given.folder))
        finally:
            other.kill()
            other.wait()
    print("| step | idle, s | beside a busy process, s |\n|---|---|---|")
    for name in STEPS:
        cells = []
        for rounds in (idle, busy):
            values = [seconds[name] for seconds in rounds]
            cells.append(f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
