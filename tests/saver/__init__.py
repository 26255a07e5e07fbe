"""`storage_loader.saver`: what is taken as a batch, cast, stored and committed."""
