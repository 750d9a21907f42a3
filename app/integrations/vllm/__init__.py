"""vLLM exports a prompt's hidden states into our slab, as our own worker does: see docs/vllm.md."""
