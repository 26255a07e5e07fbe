"""`storage_loader.jax`."""
