"""`storage_loader.cli`: the command line."""
