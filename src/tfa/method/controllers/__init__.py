"""Evidence → decisions. `database` cannot be handed a query; `target` sees target photos too."""
