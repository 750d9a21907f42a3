"""Where a config.json comes from: inline, a directory below a model root, the hub. Limits and refusals live here."""
