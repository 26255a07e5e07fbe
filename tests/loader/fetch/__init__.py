"""`storage_loader.loader.fetch`: which bytes are read, when and once; the cache."""
