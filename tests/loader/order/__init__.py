"""`storage_loader.loader.order`: which row comes when, and on which rank."""
