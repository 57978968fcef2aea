"""Runs commands of regard, each in a fork of this process, so that torch is imported once for all of them.

It reads one JSON object per line (arguments, folder, stdin, stdout, stderr) and prints the exit code.
"""

import json
import os
import sys
import traceback
from typing import Any, NoReturn

from regard import cli, predict, training  # noqa: F401  imported before the fork


def run_command(task: dict[str, Any]) -> NoReturn:
    """Run the command in this process, then exit with its code."""
    os.chdir(task["folder"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    os.dup2(os.open(task["stdin"], os.O_RDONLY), 0)
    os.dup2(os.open(task["stdout"], flags), 1)
    os.dup2(os.open(task["stderr"], flags), 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  the old one may have read ahead
    sys.argv = ["regard", *task["arguments"]]
    code = 1
    try:
        cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run_command(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
