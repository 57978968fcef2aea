"""Where the server listens, and what is checked before anything is loaded."""

import ipaddress
from importlib.util import find_spec
from typing import NamedTuple

from regard.errors import MissingExtraError, RecipeError

PACKAGES = {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"}

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Address(NamedTuple):
    """Where the server listens, and the token that requests need; empty if they need none."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """The names by which requests may call a server that only this machine can reach; None: any."""
        own = f"[{self.host}]" if ":" in self.host else self.host
        return (*LOOPBACK, own.lower()) if self.is_local else None


def check_address(address: Address) -> None:
    """Refuse an address that others can reach without a token, and a token that no header can hold."""
    if not address.is_local and not address.token:
        how = "set one with the environment variable REGARD_TOKEN, or --token"
        raise RecipeError(f"--host {address.host} can be reached from other machines, so a token is needed; {how}")
    if address.token and not (address.token.isascii() and address.token.isprintable() and " " not in address.token):
        raise RecipeError("the token has characters that a header cannot hold; choose letters, digits and - . _ ~ + /")


def check_packages() -> None:
    """Raise MissingExtraError if a package of the extra is not installed."""
    for module, package in PACKAGES.items():
        if find_spec(module) is None:
            raise MissingExtraError(package, "serve", "regard serve")


def check(address: Address) -> None:
    """Refuse what cannot be served: an address without the token that it needs, a missing package."""
    check_address(address)
    check_packages()
