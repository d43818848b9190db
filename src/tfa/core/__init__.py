"""Shared utilities without domain logic: files, locks, arrays, progress, text, plugins. Imports only `errors`."""
