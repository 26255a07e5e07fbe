"""`storage_loader.torch`, also under torch.distributed and the trainers of other libraries."""
