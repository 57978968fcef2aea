"""Ask for known vulnerabilities of the packages that make installs: `make audit`. Needs the internet.

pip-audit gets the pins from the constraints files and asks the package index for its advisories. It is installed into
an environment of its own, whose folder is the argument.
"""

import json
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = [ROOT / f"constraints{part}.txt" for part in ("-build", "-torch", "")]
PIP_AUDIT = ROOT / "constraints-audit.txt"  # its version, and all that it needs
INSTALL = ["-m", "pip", "install", "-qq", "--no-deps", "--require-hashes", "--only-binary=:all:", "-r", PIP_AUDIT]
NO_ANSWER = "the advisory service gave no answer for"


def main() -> None:
    folder = Path(sys.argv[1])
    if not (folder / "bin" / "pip-audit").exists():
        venv.create(folder, with_pip=True)
        installed = subprocess.run([folder / "bin" / "python", *INSTALL])
        if installed.returncode:
            sys.exit(f"make audit could not install {PIP_AUDIT.name}: it needs the package index; nothing was audited")
    options = ["--disable-pip", "--require-hashes", "--progress-spinner=off", "--format=json"]
    files = [f"--requirement={path}" for path in FILES]
    audit = subprocess.run([folder / "bin" / "pip-audit", *options, *files], capture_output=True, text=True)
    if not audit.stdout:
        reason = (audit.stderr.strip().splitlines() or ["no reason was given"])[-1]
        sys.exit(f"the advisory service cannot be reached, so nothing was audited: {reason}")
    sys.exit(report(json.loads(audit.stdout)["dependencies"]))


def report(packages: list[dict]) -> int:
    """Print what was found; returns the exit code: 1 if there are vulnerabilities, 2 if some could not be audited."""
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if len(skipped) == len(packages):
        print(f"nothing was audited: {NO_ANSWER} any of the {len(packages)} packages; make audit needs the internet")
        return 2
    vulnerable = [package for package in packages if package.get("vulns")]
    for package in vulnerable:
        for advisory in package["vulns"]:
            fixed = ", ".join(advisory["fix_versions"]) or "no version yet"
            print(f"{package['name']} {package['version']}: {advisory['id']}, fixed in {fixed}")
    print(f"{len(packages) - len(skipped)} of {len(packages)} packages audited, {len(vulnerable)} with vulnerabilities")
    if skipped:
        print(f"not audited, because {NO_ANSWER} them: {', '.join(skipped)}")
    return 1 if vulnerable else 2 if skipped else 0


if __name__ == "__main__":
    main()
