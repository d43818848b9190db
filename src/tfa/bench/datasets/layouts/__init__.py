"""One file a layout: how a public dataset lies on disk."""
