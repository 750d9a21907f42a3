"""The worker process: holds the target, runs prompts, writes rows into the slab. The only part that needs torch."""
