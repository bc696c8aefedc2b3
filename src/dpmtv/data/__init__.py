"""Records, images, chunks and prompts: what goes into a model, before any model."""
