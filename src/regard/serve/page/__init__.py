"""The files of the page, which a browser loads."""
