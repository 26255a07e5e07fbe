"""`storage_loader.store`: the contract of all stores, folders, and S3 as both clients speak it."""
