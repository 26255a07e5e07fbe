"""What runs while an epoch does: fetching ahead, threads, worker processes, statistics."""
