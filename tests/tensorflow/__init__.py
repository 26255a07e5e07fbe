"""`storage_loader.tensorflow`."""
