"""What a drafter or trainer imports to read hidden states from the worker in its own process."""
