"""Fast exact twins of plain definitions."""
