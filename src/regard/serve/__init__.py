"""A server for trained runs: an HTTP interface with batching, limits and streams, and a page to try them on."""
