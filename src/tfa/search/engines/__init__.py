"""Vector engines as stores, one file each. Each needs the extra of its name."""
