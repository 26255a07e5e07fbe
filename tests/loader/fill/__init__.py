"""`storage_loader.loader.fill`: rows into batches."""
