"""`storage_loader.loader.run`: what runs beside the consumer, and the statistics."""
