"""Dependencies: every version is pinned and audited."""
