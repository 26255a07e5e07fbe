"""`storage_loader.catalog`: commits, versions, garbage, verifying, and listings."""
