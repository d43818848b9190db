"""The ground floor: configuration, progress, files, arrays, tokens. Imports nothing of the package but its errors."""
