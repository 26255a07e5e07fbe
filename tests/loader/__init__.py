"""`storage_loader.loader`: `DataLoader` and `Dataset` as a user sees them."""
