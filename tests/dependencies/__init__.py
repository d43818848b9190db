"""What the project depends on: every version pinned, and asked about."""
