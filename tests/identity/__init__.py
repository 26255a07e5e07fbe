"""The same rows, bit for bit: over storages, ways of reading, frameworks and ranks."""
